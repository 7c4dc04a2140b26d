/** Who is logged in, and what that user may do: for what is shown. The node decides by itself. */

import { get, post } from "./api.js";

const EVERYTHING = "all";
const TOKEN_WORDS = ["token:read", "token:write", "token:export", "token:admin"];

let who = null;
let patterns = new Map();

/** Asks the node; throws Refused (401) if a login is needed. */
export async function learn() {
  take(await get("/v1/whoami"));
}

function take(answer) {
  who = answer;
  patterns = new Map();
  for (const right of who.rights ?? []) {
    const [word, pattern] = parse(right);
    patterns.set(word, [...(patterns.get(word) ?? []), pattern]);
  }
}

function parse(right) {
  const token = TOKEN_WORDS.find((word) => right === word || right.startsWith(`${word}:`));
  const word = token ?? right.split(":", 1)[0];
  return [word, right.length > word.length ? right.slice(word.length + 1) : "*"];
}

/** Whether a pattern, whose `*` stands for anything, covers a name. */
export function covers(pattern, name) {
  const [first, ...rest] = pattern.split("*");
  if (!rest.length) return name === pattern;
  const last = rest.pop();
  if (name.length < first.length + last.length) return false;
  if (!name.startsWith(first) || !name.endsWith(last)) return false;
  let at = first.length;
  for (const part of rest) {
    const found = name.indexOf(part, at);
    if (found < 0 || found + part.length > name.length - last.length) return false;
    at = found + part.length;
  }
  return true;
}

/** The answer of `/v1/whoami`, or null before the login. */
export const whoami = () => who;

/** Whether the user has one of the rights to the name; without a name: to anything at all. */
export function may(words, name) {
  if (!who) return false;
  if (patterns.has(EVERYTHING)) return true;
  return [words].flat().some((word) => {
    const held = patterns.get(word) ?? [];
    return name === undefined ? held.length > 0 : held.some((one) => covers(one, name));
  });
}

/** Whether the user has one of the rights to everything of its kind. */
export function mayAll(...words) {
  if (!who) return false;
  return (
    patterns.has(EVERYTHING) || words.some((word) => (patterns.get(word) ?? []).includes("*"))
  );
}

/** Logs in; throws Refused. The secret is in the body alone, and is kept nowhere. */
export async function login(user, secret) {
  take(await post("/console/login", { user, secret }));
}

/** Logs out. */
export async function logout() {
  await post("/console/logout");
  who = null;
}

/** Forgets a login that the node no longer takes. */
export function forget() {
  who = null;
}
