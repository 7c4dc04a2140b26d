/**
 * Addresses within the console: `#/queues/mail?state=buried`.
 *
 * They are behind the `#`, which a browser sends to nobody. Names are percent-encoded.
 */

/** What the address says: the names of its path, and its parameters. */
export function here() {
  const [way, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { names: way.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

/** The address of a page. */
export function link(names, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const text = new URLSearchParams(given).toString();
  return `#/${names.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Goes to a page. */
export function go(names, query) {
  location.hash = link(names, query);
}

/** Changes parameters of this address: a new place to come back to, on the same page. */
export function change(values) {
  const { names, query } = here();
  for (const [name, value] of Object.entries(values)) query.set(name, value ?? "");
  go(names, Object.fromEntries(query));
}
