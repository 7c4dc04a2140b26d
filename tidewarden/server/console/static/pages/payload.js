/** Shows a payload or a result: as text up to a length, and what is no text as hexadecimal. */

import { h } from "../dom.js";
import { bytes, number } from "../format.js";

const TEXT_MAX = 20_000;
const HEX_MAX = 1024;
const LINE = 16;
const CONTROL = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/;

/** Whether a browser's field keeps a payload as it is: text, whose lines end as there. */
export const isEditable = (text) =>
  typeof text === "string" && !CONTROL.test(text) && !text.includes("\r");

/**
 * Makes the element.
 * @param {string|undefined} text the payload, if it is UTF-8
 * @param {string|undefined} base64 or else
 */
export function payloadOf(text, base64) {
  const raw = typeof text === "string" ? new TextEncoder().encode(text)
    : Uint8Array.from(atob(base64 ?? ""), (letter) => letter.charCodeAt(0));
  if (!raw.length) return h("p", { class: "quiet" }, "Empty.");
  const isText = typeof text === "string" && !CONTROL.test(text);
  const most = isText ? TEXT_MAX : HEX_MAX;
  const size = isText ? text.length : raw.length;
  const shown = isText ? pretty(text.slice(0, most), text.length <= most)
    : hex(raw.subarray(0, most));
  const rest = size > most
    ? `; shown are the first ${number(most)} ${isText ? "characters" : "bytes"}` : "";
  return h("div", {},
    h("p", { class: "quiet" }, `${isText ? "Text" : "Binary"} of ${bytes(raw.length)}${rest}.`),
    h("pre", { tabindex: "0", role: "region", "aria-label": "Payload" }, shown));
}

function pretty(text, whole) {
  if (!whole || !/^\s*[[{]/.test(text)) return text;
  try {
    // A number that JavaScript would round is shown as it was sent.
    return /\d{16}/.test(text) ? text : JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function hex(raw) {
  const lines = [];
  for (let at = 0; at < raw.length; at += LINE) {
    const part = [...raw.subarray(at, at + LINE)];
    const codes = part.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const letters = part.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : "."));
    const place = at.toString(16).padStart(6, "0");
    lines.push(`${place}  ${codes.padEnd(LINE * 3)} ${letters.join("")}`);
  }
  return lines.join("\n");
}
