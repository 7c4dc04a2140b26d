/**
 * Makes elements, and changes what a page shows into what it should show.
 *
 * Names, payloads and reasons are written by strangers: they become text nodes and attributes,
 * never markup. Nothing in this console parses HTML.
 */

const HANDLERS = Symbol("handlers");
/** Where a link may lead: into this page, to this node, or to another node's console. */
const HREF = /^(#|\/(?!\/)|https?:\/\/)/;

/**
 * Makes an element.
 * @param {string} tag
 * @param {Object<string, any>} props attributes; `on` holds handlers by event, `value`, `checked`
 *   and `spec` are properties, and what is null, undefined or false is left out
 * @param {...any} children nodes, texts, numbers and lists of them; null and false are left out
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") listen(element, value);
    else if (name === "value" || name === "checked" || name === "spec") element[name] = value;
    else if (name === "href" && !HREF.test(value)) element.setAttribute("href", "#/");
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

function listen(element, handlers) {
  element[HANDLERS] = handlers;
  for (const [name, handler] of Object.entries(handlers)) element[`on${name}`] = handler;
}

/** Shows `children` in `parent`, and keeps those elements that are there: focus, scroll, plots. */
export function show(parent, ...children) {
  const wanted = document.createElement(parent.tagName);
  append(wanted, children);
  morphChildren(parent, wanted);
}

/** What a node is about: as it says, or a section by its heading, for sections come and go. */
const keyOf = (node) => node.dataset?.key
  ?? (node.nodeName === "SECTION" ? `section ${headingOf(node)}` : undefined);
const headingOf = (section) =>
  section.getAttribute("aria-label") ?? section.querySelector("h2")?.textContent ?? "";
const alike = (old, wanted) =>
  old.nodeType === wanted.nodeType &&
  old.nodeName === wanted.nodeName &&
  keyOf(old) === keyOf(wanted);

function morphChildren(old, wanted) {
  const children = [...wanted.childNodes];
  const stay = new Set(children.map(keyOf));
  const kept = new Map();
  for (const child of [...old.childNodes]) {
    const key = keyOf(child);
    if (key === undefined) continue;
    if (stay.has(key)) kept.set(key, child);
    else child.remove();
  }
  let at = old.firstChild;
  for (const next of children) {
    const key = keyOf(next);
    const found = key === undefined ? at : kept.get(key);
    if (found && alike(found, next)) {
      if (found !== at) old.insertBefore(found, at);
      morph(found, next);
      at = found.nextSibling;
    } else {
      old.insertBefore(next, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function morph(old, wanted) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  // What somebody has opened stays open.
  const own = (name) => name === "open" && old.nodeName === "DETAILS";
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !own(name)) old.removeAttribute(name);
  }
  // What somebody types stays, until the page wants something else in the field than it did.
  const other = wanted.dataset.value;
  if (other !== undefined && other !== old.dataset.value) old.value = wanted.value;
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value && !own(name)) old.setAttribute(name, value);
  }
  for (const name of Object.keys(old[HANDLERS] ?? {})) old[`on${name}`] = null;
  listen(old, wanted[HANDLERS] ?? {});
  if ("spec" in wanted) old.spec = wanted.spec;
  else morphChildren(old, wanted);
}
