/** One queue: how it is, the last hour, its tasks by state, its settings, what can be done. */

import { get, getIf, path, query as queryOf } from "../api.js";
import { h } from "../dom.js";
import { counted, duration, number, time } from "../format.js";
import { plot } from "../plot.js";
import { change, go, link } from "../router.js";
import { may } from "../session.js";
import { facts, table } from "../table.js";
import { figures } from "./history.js";
import * as actions from "./queue_actions.js";
import { lateBy } from "./queues.js";
import { historyOf } from "./task.js";

const STATES = ["ready", "delayed", "leased", "buried", "waiting"];
const PAGE = 50;
const HISTORY_EVERY_MS = 10_000;

/** Makes the page of a queue; the address selects a state and a page of tasks. */
export function queuePage(queue, query) {
  const state = STATES.includes(query.get("state")) ? query.get("state") : "";
  const after = query.get("after") ?? "";
  const of = path`/v1/queues/${queue}`;
  let [history, asked_ms] = [null, 0];
  return {
    title: queue,
    every_ms: 3000,
    async load(signal) {
      const { stats, settings } = await get(of, signal);
      if (Date.now() - asked_ms >= HISTORY_EVERY_MS) {
        history = await getIf(`${of}/history`, signal);
        asked_ms = Date.now();
      }
      const shown = state || (stats.buried ? "buried" : "ready");
      const tasks = may(["take", "admin"], queue)
        ? await getIf(`${of}/tasks${queryOf({ state: shown, count: PAGE, after })}`, signal)
        : null;
      const reasons = tasks && shown === "buried"
        ? await getIf(`${of}/buried/reasons`, signal) : null;
      return { stats, settings, history, tasks, shown, reasons };
    },
    view: ({ stats, settings: set, history: past, tasks, shown, reasons }, again) => [
      h("p", {}, h("a", { href: link(["queues"]) }, "All queues")),
      health(stats),
      buttons(queue, stats, again),
      past ? h("section", {}, h("h2", {}, "The last hour"),
        h("div", { class: "plots" }, figures(past).map(plot))) : null,
      reasons?.reasons.length ? reasonSection(queue, reasons, again) : null,
      taskSection(queue, stats, tasks, shown, after, again),
      settingsOf(queue, set, again),
    ],
    without: () => h("p", {}, h("a", { href: link(["queues"]) }, "All queues")),
  };
}

function health(stats) {
  const late = lateBy(stats);
  const paused = stats.paused_until_ms;
  return [
    paused ? h("p", { class: "note warn" }, "Paused: takers get nothing",
      paused < 4e12 ? [" until ", time(paused, true)] : " until somebody resumes it", ".") : null,
    h("section", { "aria-label": "Figures" }, h("div", { class: "cards" },
      h("div", { class: "card" }, facts([
        ...STATES.map((name) => [name, number(stats[name] ?? 0)]),
        ["in all", number(stats.total)],
      ])),
      h("div", { class: "card" }, facts([
        ["oldest ready is late by", late === null ? "–" : duration(late)],
        ["next falls due", stats.next_ms > 0 ? time(stats.next_ms) : "–"],
        ["takes that wait here", number(stats.waiting_takes_here ?? 0)],
        ["schedules", number(stats.schedules ?? 0)],
        ["shards", number(stats.shards)],
      ])),
      h("div", { class: "card" }, facts(Object.entries(stats)
        .filter(([name]) => name.startsWith("count_"))
        .map(([name, value]) => [`${name.slice(6).replaceAll("_", " ")} so far`,
          number(value)]))))),
  ];
}

function buttons(queue, stats, again) {
  if (!actions.mayAdmin(queue)) return null;
  const button = (text, work, danger, then = again) => h("button", {
    type: "button",
    class: danger ? "danger" : null,
    on: { click: async () => (await work()) && then() },
  }, text);
  return h("div", { class: "actions", role: "group", "aria-label": "What can be done" },
    stats.paused_until_ms ? button("Resume", () => actions.resume(queue))
      : button("Pause …", () => actions.pause(queue)),
    stats.buried ? button("Kick buried …", () => actions.kickMany(queue)) : null,
    stats.buried ? button("Move buried …", () => actions.moveMany(queue)) : null,
    button("Purge …", () => actions.purge(queue, stats), true),
    button("Drop …", () => actions.drop(queue, stats), true, () => go(["queues"])));
}

function reasonSection(queue, found, again) {
  const button = (text, work) => h("button", { type: "button",
    on: { click: async () => (await work()) && again() } }, text);
  return h("section", { "data-key": "reasons" }, h("h2", {}, "Why tasks are buried"),
    table("Reasons", [
      { title: "Tasks", number: true, cell: (row) => number(row.tasks) },
      { title: "Reason", cell: (row) => row.reason || "–" },
      { title: "First", cell: (row) => time(row.first_ms) },
      { title: "Last", cell: (row) => time(row.last_ms) },
      { title: "For example", cell: (row) =>
        h("a", { href: link(["queues", queue, "tasks", row.example]) }, row.example) },
      { title: "All of these", cell: (row) => (actions.mayAdmin(queue) && row.reason
        ? h("span", { class: "row" },
          button("Kick …", () => actions.kickMany(queue, row.reason)),
          button("Move …", () => actions.moveMany(queue, row.reason))) : null) },
    ], found.reasons, { key: (row) => row.reason }),
    found.others ? h("p", { class: "quiet" },
      `${counted(found.others, "task")} of further reasons.`) : null,
    found.more ? h("p", { class: "quiet" },
      `The ${number(found.tasks)} tasks that were buried first.`) : null);
}

function taskSection(queue, stats, tasks, shown, after, again) {
  if (!tasks) {
    return h("p", { class: "quiet" }, "To see its tasks takes the right take or admin to it.");
  }
  const select = (state) => change({ state, after: "" });
  return h("section", {}, h("h2", {}, "Tasks"),
    h("div", { class: "toolbar" },
      STATES.map((state) => h("button", { type: "button", "aria-pressed": String(state === shown),
        on: { click: () => select(state) } }, `${state} ${number(stats[state] ?? 0)}`)),
      finder(queue)),
    shown === "buried" ? buriedTable(queue, tasks.tasks, again) : taskTable(queue, tasks.tasks),
    h("div", { class: "actions" },
      after ? h("a", { class: "button", href: link(["queues", queue], { state: shown }) },
        "First page") : null,
      tasks.after ? h("a", { class: "button", href: link(["queues", queue],
        { state: shown, after: tasks.after }) }, "Next page") : null));
}

function finder(queue) {
  const submit = (event) => {
    event.preventDefault();
    const id = event.target.elements.id.value.trim();
    if (id) go(["queues", queue, "tasks", id]);
  };
  return h("form", { class: "row", role: "search", on: { submit } },
    h("label", { for: "find-id" }, "Task by id"),
    h("input", { id: "find-id", name: "id", type: "search", autocomplete: "off" }),
    h("button", {}, "Show"));
}

const taskLink = (queue) => (task) =>
  h("a", { href: link(["queues", queue, "tasks", task.id]) }, task.id);

function taskTable(queue, tasks) {
  return table("Tasks", [
    { title: "Task", cell: taskLink(queue) },
    { title: "Due", cell: (task) => time(task.due_ms) },
    { title: "Deadline", cell: (task) => time(task.deadline_ms) },
    { title: "Priority", number: true, cell: (task) => number(task.priority) },
    { title: "Attempts", number: true, cell: (task) => number(task.attempts) },
    { title: "Lease ends", cell: (task) => time(task.lease_end_ms) },
    { title: "Node", cell: (task) => task.node || "–" },
    { title: "Last reason", cell: (task) => task.reason || "–" },
  ], tasks, { key: (task) => task.id });
}

function buriedTable(queue, tasks, again) {
  const button = (text, work) => h("button", { type: "button",
    on: { click: async () => (await work()) && again() } }, text);
  return table("Buried tasks", [
    { title: "Task", cell: taskLink(queue) },
    { title: "Buried", cell: (task) => time(task.buried_ms) },
    { title: "Reason", cell: (task) => task.reason || "–" },
    { title: "Attempts", number: true, cell: (task) => number(task.attempts) },
    { title: "Losses", number: true, cell: (task) => number(task.losses) },
    { title: "History", cell: (task) => (task.history?.length
      ? h("details", {}, h("summary", {}, counted(task.history.length, "bad end")),
        historyOf(task.history)) : "–") },
    { title: "What can be done", cell: (task) => h("span", { class: "row" },
      actions.mayAdmin(queue) ? button("Kick", () => actions.kickOne(queue, task.id)) : null,
      button("Delete …", () => actions.deleteTask(queue, task.id, "buried"))) },
  ], tasks, { key: (task) => task.id });
}

function settingsOf(queue, settings, again) {
  const edit = async () => (await actions.changeSetting(queue, settings)) && again();
  return h("section", { "data-key": "settings" }, h("details", {}, h("summary", {}, "Settings"),
    h("div", { class: "card" }, facts(Object.entries(settings).map(([name, value]) =>
      [name, h("code", {}, String(value))]))),
    actions.mayAdmin(queue) ? h("p", {}, h("button", { type: "button", on: { click: edit } },
      "Change a setting …")) : null));
}
