/** Asks this node, and knows since when it does not answer. */

const TIMEOUT_MS = 10_000;

/** The node answered, with an error: `word` as in the protocol's table, `status` of HTTP. */
export class Refused extends Error {
  constructor(status, word, message) {
    super(message);
    this.status = status;
    this.word = word;
  }
}

/** The node did not answer. */
export class Away extends Error {}

/** Sends `away` when the node stops answering, `back` when it answers, `loggedout` on a 401. */
export const connection = new EventTarget();
connection.since_ms = 0;

function lost() {
  if (connection.since_ms) return;
  connection.since_ms = Date.now();
  connection.dispatchEvent(new Event("away"));
}

function found() {
  if (!connection.since_ms) return;
  connection.since_ms = 0;
  connection.dispatchEvent(new Event("back"));
}

/** A path whose names are percent-encoded: path`/v1/queues/${queue}`. */
export const path = (texts, ...names) =>
  texts.reduce((made, text, index) => made + encodeURIComponent(names[index - 1]) + text);

/** The query of a path, of what is neither empty, null nor undefined. */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value != null);
  const text = new URLSearchParams(given).toString();
  return text ? `?${text}` : "";
}

/**
 * Opens a request, and throws Away or Refused.
 * @returns {Promise<Response>} a success whose body is yet to be read
 */
export async function open(method, where, { body, signal, headers } = {}) {
  const changes = method !== "GET";
  let response;
  try {
    response = await fetch(where, {
      method,
      signal,
      cache: "no-store",
      credentials: "same-origin",
      redirect: "error",
      headers: {
        Accept: "application/json",
        ...(changes ? { "Tidewarden-Console": "1" } : {}),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lost();
    throw new Away("The node does not answer.");
  }
  found();
  if (response.ok) return response;
  throw await refusal(response, where);
}

async function refusal(response, where) {
  let told = {};
  try {
    told = await response.json();
  } catch {
    told = { message: `The node answered ${response.status} ${response.statusText}.` };
  }
  const word = String(told.error ?? `HTTP ${response.status}`);
  if (response.status === 401 && !where.startsWith("/console/")) {
    connection.dispatchEvent(new CustomEvent("loggedout", { detail: where }));
  }
  return new Refused(response.status, word, String(told.message ?? ""));
}

/** Sends a request and reads its answer, if it has one, as JSON. */
async function ask(method, where, body, signal) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const response = await open(method, where, {
    body,
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  });
  try {
    const text = await response.text();
    return text ? JSON.parse(text) : {};
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lost();
    throw new Away("The node broke off its answer.");
  }
}

export const get = (where, signal) => ask("GET", where, undefined, signal);
export const post = (where, body) => ask("POST", where, body);
export const patch = (where, body) => ask("PATCH", where, body);
export const remove = (where) => ask("DELETE", where);

/** What `/v1/…` answers, or null where this user may not see it or this node has no such path. */
export async function getIf(where, signal) {
  try {
    return await get(where, signal);
  } catch (error) {
    if (error instanceof Refused && [401, 403, 404, 405].includes(error.status)) return null;
    throw error;
  }
}
