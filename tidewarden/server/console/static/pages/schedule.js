/** One schedule: when it ticks next, what became of its last run, what it puts. */

import { get, path, query as queryOf } from "../api.js";
import { h } from "../dom.js";
import { number, time } from "../format.js";
import { link } from "../router.js";
import { facts } from "../table.js";
import { payloadOf } from "./payload.js";
import { buttons, lastOf, stateOf, toList, triggerOf } from "./schedules.js";

const NEXT = 10;
const MISSED = {
  none: "nothing: it goes on with the next tick",
  one: "one task for all of them",
  all: "a task for each of them",
};
const HOW = { tick: "its tick", hand: "somebody ran it" };

/** Makes the page of a schedule. */
export function schedulePage(name) {
  return {
    title: name,
    every_ms: 5000,
    load: (signal) => get(path`/v1/schedules/${name}` + queryOf({ count: NEXT }), signal),
    view: (one, again) => [
      h("p", {}, "A schedule that puts into ",
        h("a", { href: link(["queues", one.queue]) }, one.queue), ". ",
        h("a", { href: link(["schedules"]) }, "All schedules")),
      h("div", { class: "actions", role: "group", "aria-label": "What can be done" },
        buttons(one, again, toList)),
      h("div", { class: "cards" },
        h("div", { class: "card" }, facts([
          ["State", stateOf(one)],
          ["Ticks", triggerOf(one)],
          ["Missed ticks put", MISSED[one.catchup]],
          ["Priority", one.priority === undefined ? null : number(one.priority)],
        ])),
        h("div", { class: "card" }, h("h2", {}, "Last run"), lastRun(one)),
        h("div", { class: "card" }, h("h2", {}, "Next runs"), nextRuns(one))),
      h("section", {}, h("h2", {}, "Payload"), one.payload_bytes === undefined
        ? h("p", { class: "quiet" }, "This version cannot read it.")
        : payloadOf(one.payload, one.payload_base64),
      one.payload_bytes > 256 ? h("p", { class: "quiet" },
        `The first bytes of ${number(one.payload_bytes)}.`) : null),
    ],
    without: () => h("p", {}, h("a", { href: link(["schedules"]) }, "All schedules")),
  };
}

function lastRun({ last, queue }) {
  if (!last) return h("p", { class: "quiet" }, "It has not run.");
  return facts([
    ["Its task", lastOf({ last, queue })],
    ["Id", h("code", {}, last.id)],
    ["Put by", HOW[last.how]],
    ["Due", time(last.due_ms, true)],
    ["Put", time(last.put_ms, true)],
    ["Ended", last.ended_ms ? time(last.ended_ms, true) : null],
    ["Attempts", last.attempts ? number(last.attempts) : null],
    ["Reason", last.reason],
  ]);
}

function nextRuns({ next, state }) {
  if (!next?.length) {
    return h("p", { class: "quiet" }, state === "active" ? "None." : `None while it is ${state}.`);
  }
  return h("ol", { class: "row" }, next.map((at_ms) => h("li", {}, time(at_ms, true))));
}
