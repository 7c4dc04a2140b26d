/** Asks before something is done, perhaps for words to be typed, and tells how it went. */

import { Refused } from "./api.js";
import { h } from "./dom.js";

let fields_made = 0;

/**
 * Asks in a dialog.
 * @param {object} question
 * @param {string} question.title
 * @param {any} question.text what will happen
 * @param {string} question.verb on the button that does it
 * @param {boolean} [question.danger] it cannot be undone
 * @param {string} [question.typed] what must be typed first, so that no slip of a finger does it
 * @param {{name: string, label: string, value?: any, type?: string, options?: any[],
 *   required?: boolean, min?: number, hint?: string}[]} [question.fields] the type `area` is for
 *   long texts, whose blanks count
 * @returns {Promise<Object<string, string>|null>} the fields' values, or null if it was cancelled
 */
export function ask({ title, text, verb, danger = false, typed = "", fields = [] }) {
  const opener = document.activeElement;
  const titleId = `dialog-${++fields_made}`;
  const inputs = fields.map(field);
  const typing = typed ? field({ name: "typed", label: ["Type ", h("code", {}, typed),
    " to go on"], required: true }) : null;
  const yes = h("button", { class: danger ? "danger" : "primary", value: "yes" }, verb);
  if (typing) {
    yes.disabled = true;
    typing.input.oninput = () => (yes.disabled = typing.input.value !== typed);
  }
  const cancel = h("button", { type: "button", on: { click: () => box.close() } }, "Cancel");
  const box = h(
    "dialog",
    { "aria-labelledby": titleId },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: titleId }, title),
      h("div", { class: "words" }, text),
      [...inputs, ...(typing ? [typing] : [])].map((one) => one.element),
      h("div", { class: "actions" }, yes, cancel),
    ),
  );
  return new Promise((done) => {
    box.addEventListener("close", () => {
      const values = Object.fromEntries(inputs.map(({ name, input, exact }) =>
        [name, exact ? input.value : input.value.trim()]));
      const answer = box.returnValue === "yes" ? values : null;
      box.remove();
      if (opener?.isConnected) opener.focus();
      done(answer);
    });
    document.body.append(box);
    box.showModal();
    (typing?.input ?? inputs[0]?.input ?? cancel).focus();
  });
}

function field({ name, label, value = "", type = "text", options, required, min, hint }) {
  const id = `field-${++fields_made}`;
  const hintId = hint ? `${id}-hint` : null;
  const given = { id, name, required, "aria-describedby": hintId };
  const exact = type === "area";
  const input = options
    ? h("select", given, options.map((one) => h("option", { value: one }, one)))
    : exact ? h("textarea", { ...given, rows: 14, cols: 70, spellcheck: "false" })
    : h("input", { ...given, type, min, autocomplete: "off", spellcheck: "false" });
  input.value = value;
  const element = h(
    "p",
    { class: "field" },
    h("label", { for: id }, label),
    input,
    hint ? h("small", { id: hintId }, hint) : null,
  );
  return { name, input, element, exact };
}

/** Says something for a few seconds, also to those who hear the page. */
export function tell(text, wrong = false) {
  const place = document.getElementById("told");
  const close = h("button", { type: "button", class: "plain", on: { click: () => note.remove() } },
    "Close");
  const note = h("p", { class: wrong ? "note wrong" : "note" }, text, " ", close);
  place.append(note);
  while (place.children.length > 3) place.firstChild.remove();
  setTimeout(() => note.remove(), wrong ? 30_000 : 6000);
}

/**
 * Does something long piece by piece, and tells how far it has come; a button stops it.
 * @param {() => Promise<{done: number, left: number}>} piece
 * @param {(done: number, left: number) => string} text
 */
export async function inPieces(piece, text) {
  const place = document.getElementById("told");
  const said = h("span");
  let stopped = false;
  const stop = h("button", { type: "button", class: "plain",
    on: { click: () => (stopped = true) } }, "Stop");
  const note = h("p", { class: "note" }, said, " ", stop);
  let all = 0;
  try {
    for (;;) {
      const { done, left } = await piece();
      all += done;
      if (stopped || !done || !left) return text(all, left);
      said.textContent = text(all, left);
      if (!note.isConnected) place.append(note);
    }
  } catch (error) {
    if (all) error.message = `${text(all, 0)} Then: ${error.message}`;
    throw error;
  } finally {
    note.remove();
  }
}

/**
 * Does something and tells how it went.
 * @param {() => Promise<any>} work
 * @param {string|((answer: any) => string)} done what is said after a success
 * @returns {Promise<boolean>} whether it was done
 */
export async function act(work, done) {
  try {
    const answer = await work();
    tell(typeof done === "function" ? done(answer) : done);
    return true;
  } catch (error) {
    tell(toldOf(error), true);
    return false;
  }
}

/** An error in words for the operator. */
export function toldOf(error) {
  if (!(error instanceof Refused)) return error.message || String(error);
  const meaning = {
    DENIED: "You may not do this. ",
    NOAUTH: "Log in first. ",
    NOQUORUM: "Too few stores are in sync. ",
    STOREDOWN: "The store does not answer. ",
  }[error.word];
  return `${error.word}: ${meaning ?? ""}${error.message}`;
}
