/** One task: its state, times, payload, and how it ended badly before. */

import { get, getIf, path, query as queryOf } from "../api.js";
import { h } from "../dom.js";
import { duration, number, time } from "../format.js";
import { go, link } from "../router.js";
import { facts, table } from "../table.js";
import { silent } from "./consumers.js";
import { isEditable, payloadOf } from "./payload.js";
import * as actions from "./queue_actions.js";

const HOW = {
  fail: "failed",
  expired: "its lease ran out",
  loss: "its consumer went",
  bury: "buried by its consumer",
  ttl: "nobody took it in time",
};

/** Makes the page of a task. */
export function taskPage(queue, id) {
  return {
    title: id,
    every_ms: 5000,
    async load(signal) {
      const task = await get(path`/v1/queues/${queue}/tasks/${id}`, signal);
      const held = task.state === "leased" && actions.mayAdmin(queue)
        ? await getIf(path`/v1/queues/${queue}/holders` + queryOf({ id }), signal) : null;
      return { task, held };
    },
    view: ({ task, held }, again) => [
      h("p", {}, "A task of ", h("a", { href: link(["queues", queue]) }, queue)),
      h("p", {}, h("span", { class: `tag ${task.state === "buried" ? "ill" : ""}` }, task.state),
        task.reason ? ` ${task.reason}` : ""),
      buttons(queue, task, again),
      h("div", { class: "cards" }, h("div", { class: "card" }, times(task)),
        h("div", { class: "card" }, counts(task)),
        held ? h("div", { class: "card" }, holderOf(held)) : null),
      held ? silent(held.unreachable) : null,
      h("section", {}, h("h2", {}, "Payload"), payloadOf(task.payload, task.payload_base64),
        mayEdit(queue, task) && !isEditable(task.payload) ? h("p", { class: "quiet" },
          "It is no text that a browser keeps as it is: ", h("code", {},
            "tidewarden queue kick --id … --payload -"), " puts it again with another.") : null),
      h("section", {}, h("h2", {}, "How it ended before"), historyOf(task.history ?? [])),
    ],
    without: () => h("p", {}, h("a", { href: link(["queues", queue]) }, `To the queue ${queue}`)),
  };
}

const mayEdit = (queue, task) => task.state === "buried" && actions.mayAdmin(queue);

function buttons(queue, task, again) {
  const kick = async () => (await actions.kickOne(queue, task.id)) && again();
  const edit = async () => (await actions.editTask(queue, task)) && again();
  const away = async () => {
    if (await actions.deleteTask(queue, task.id, task.state)) go(["queues", queue]);
  };
  return h("div", { class: "actions", role: "group", "aria-label": "What can be done" },
    mayEdit(queue, task)
      ? h("button", { type: "button", class: "primary", on: { click: kick } }, "Kick") : null,
    mayEdit(queue, task) && isEditable(task.payload)
      ? h("button", { type: "button", on: { click: edit } }, "Edit and put again …") : null,
    h("button", { type: "button", class: "danger", on: { click: away } }, "Delete …"));
}

const at = (ms) => (ms > 0 ? time(ms, true) : null);

function times(task) {
  return facts([
    ["Due", at(task.due_ms)],
    ["Deadline", at(task.deadline_ms)],
    ["Lease ends", at(task.lease_end_ms)],
    ["Buried", at(task.buried_ms)],
    ["Next", at(task.next_ms)],
    ["Expires", at(task.expires_ms)],
  ]);
}

function holderOf({ holders: [one] }) {
  if (!one) return null;
  return facts([
    ["Held by", one.user || "nobody that a node knows"],
    ["Its name", one.name],
    ["Runs at", one.host],
    ["Process", one.pid],
    ["Address", one.address],
    ["Since", at(one.since_ms)],
    ["Consumers", h("a", { href: link(["consumers"], { user: one.user }) },
      "Those of this user")],
  ]);
}

function counts(task) {
  return facts([
    ["Priority", number(task.priority)],
    ["Attempts", `${number(task.attempts)}`
      + (task.attempts_max ? ` of ${number(task.attempts_max)}` : "")],
    ["Losses", number(task.losses)],
    ["Lane", task.lane],
    ["Lease number", task.lease || null],
    ["Held at node", task.node],
    ["Session", task.session],
    ["Trace", task.traceparent ? h("code", {}, task.traceparent) : null],
    ["Lease", task.lease_ms ? duration(task.lease_ms) : null],
    ["Backoff", task.backoff_ms ? duration(task.backoff_ms) : null],
  ]);
}

/** The table of a task's bad ends, the newest first. */
export function historyOf(history) {
  return table("Bad ends of the task", [
    { title: "When", cell: (one) => time(one.at_ms, true) },
    { title: "How", cell: (one) => HOW[one.how] ?? one.how },
    { title: "Attempt", number: true, cell: (one) => number(one.attempt) },
    { title: "Reason", cell: (one) => one.reason || "–" },
  ], [...history].reverse(), { empty: "It has never ended badly." });
}
