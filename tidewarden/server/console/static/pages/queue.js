/** One queue: how it is, the last hour, its tasks by state, its settings, what can be done. */

import { Refused, get, getIf, path, query as queryOf } from "../api.js";
import { toldOf } from "../dialog.js";
import { h } from "../dom.js";
import { counted, duration, number, time } from "../format.js";
import { plot } from "../plot.js";
import { change, go, link } from "../router.js";
import { may } from "../session.js";
import { facts, table } from "../table.js";
import { buriedTable, reasonSection } from "./buried.js";
import { silent } from "./consumers.js";
import { figures } from "./history.js";
import * as actions from "./queue_actions.js";
import { lateBy } from "./queues.js";
import { toolbar } from "./toolbar.js";

const STATES = ["ready", "delayed", "leased", "buried", "waiting"];
const PAGE = 50;
const SELDOM_MS = 10_000;
const SEARCH_MS = 2000;
/** What is searched for, as the address says it. */
const FIELDS = ["find", "in", "where"];

/** Makes the page of a queue; the address selects a state, a page of tasks, and a search. */
export function queuePage(queue, query) {
  const state = STATES.includes(query.get("state")) ? query.get("state") : "";
  const after = query.get("after") ?? "";
  const asked = Object.fromEntries(FIELDS.map((name) => [name, query.get(name) ?? ""]));
  const of = path`/v1/queues/${queue}`;
  let [history, reasons, asked_ms] = [null, null, 0];
  // A search is work for the store: it is done once, and anew when something was changed.
  let searched = null;
  return {
    title: queue,
    every_ms: 3000,
    async load(signal) {
      const { stats, settings } = await get(of, signal);
      const shown = state || (stats.buried ? "buried" : "ready");
      const page = { state: shown, count: PAGE, after, payloads: false };
      const tasks = !may(["take", "admin"], queue) ? null
        : asked.find || asked.where ? (searched ??= await search(of, page, asked, signal))
        : shown === "leased" && actions.mayAdmin(queue) ? await held(of, after, signal)
        : await getIf(`${of}/tasks${queryOf(page)}`, signal);
      // Each look at 100,000 reasons takes a third of a second of the store.
      if (Date.now() - asked_ms >= SELDOM_MS) {
        asked_ms = Date.now(); // what is changed from now on is asked for anew
        history = await getIf(`${of}/history`, signal);
        reasons = tasks && shown === "buried"
          ? await getIf(`${of}/buried/reasons`, signal) : null;
      }
      return { stats, settings, history, tasks, shown,
        reasons: shown === "buried" ? reasons : null };
    },
    view({ stats, settings: set, history: past, tasks, shown, reasons }, ask) {
      const again = () => {
        searched = null;
        asked_ms = 0;
        ask();
      };
      return [
        h("p", {}, h("a", { href: link(["queues"]) }, "All queues")),
        health(stats),
        buttons(queue, stats, again),
        past ? h("section", {}, h("h2", {}, "The last hour"),
          h("div", { class: "plots" }, figures(past).map(plot))) : null,
        reasons?.reasons.length ? reasonSection(queue, reasons, again) : null,
        taskSection(queue, stats, tasks, { shown, after, asked }, again),
        settingsOf(queue, set, again),
      ];
    },
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
    stats.buried ? button("Delete buried …", () => actions.deleteMany(queue), true) : null,
    button("Purge …", () => actions.purge(queue, stats), true),
    button("Drop …", () => actions.drop(queue, stats), true, () => go(["queues"])));
}

/** A page of the tasks that are held, and by whom. */
async function held(of, after, signal) {
  const page = await getIf(`${of}/holders${queryOf({ count: PAGE, after })}`, signal);
  return page && { tasks: page.holders, after: page.after, unreachable: page.unreachable };
}

/** Finds tasks that fit: as many as a page has, or what is found within two seconds. */
async function search(of, page, asked, signal) {
  const glob = asked.find.includes("*") ? asked.find : `*${asked.find}*`;
  const wanted = { ...(asked.find ? { match: glob, match_in: asked.in } : {}), where: asked.where };
  const found = { tasks: [], after: page.after, looked: 0, unread: 0 };
  const until = Date.now() + SEARCH_MS;
  try {
    do {
      const rest = { ...page, count: PAGE - found.tasks.length, after: found.after, ...wanted };
      const some = await getIf(`${of}/tasks${queryOf(rest)}`, signal);
      if (!some) return null;
      found.tasks.push(...some.tasks);
      found.looked += some.looked;
      found.unread += some.unread;
      found.after = some.after;
    } while (found.after && found.tasks.length < PAGE && Date.now() < until);
  } catch (error) {
    if (!(error instanceof Refused) || error.word !== "BADARG") throw error;
    return { ...found, after: "", wrong: toldOf(error) };
  }
  return found;
}

function searchTools({ shown, asked }) {
  return toolbar([
    { name: "find", label: "Search", value: asked.find },
    { name: "in", label: "In", value: asked.in || "payload",
      options: ["payload", "id", "reason"] },
    { name: "where", label: "With a value, as $.user.id=42", value: asked.where },
  ], (values) => change({ ...values, state: shown, after: "" }));
}

/** How far a search has looked. */
function told({ tasks, looked, unread, after, wrong }) {
  if (looked === undefined) return null;
  if (wrong) return h("p", { class: "note wrong", role: "alert" }, wrong);
  return h("p", { class: "quiet", role: "status" },
    `${counted(tasks.length, "task")} of the ${number(looked)} that were looked at fit.`
    + (unread ? ` ${counted(unread, "payload")} of more than 64 KiB were not read as JSON.` : "")
    + (after ? " There are more to look at." : ""));
}

function taskSection(queue, stats, tasks, view, again) {
  const { shown, after, asked } = view;
  if (!tasks) {
    return h("p", { class: "quiet" }, "To see its tasks takes the right take or admin to it.");
  }
  const select = (state) => change({ state, after: "" });
  return h("section", {}, h("h2", {}, "Tasks"),
    h("div", { class: "toolbar" },
      STATES.map((state) => h("button", { type: "button", "aria-pressed": String(state === shown),
        on: { click: () => select(state) } }, `${state} ${number(stats[state] ?? 0)}`)),
      finder(queue)),
    searchTools(view),
    told(tasks),
    tasks.unreachable ? silent(tasks.unreachable) : null,
    shown === "buried" ? buriedTable(queue, tasks.tasks, again)
      : tasks.unreachable ? heldTable(queue, tasks.tasks) : taskTable(queue, tasks.tasks),
    h("div", { class: "actions" },
      after ? h("a", { class: "button", href: link(["queues", queue], { state: shown, ...asked }) },
        "First page") : null,
      tasks.after ? h("a", { class: "button", href: link(["queues", queue],
        { state: shown, ...asked, after: tasks.after }) }, "Next page") : null));
}

function finder(queue) {
  const submit = (event) => {
    event.preventDefault();
    const id = event.target.elements.id.value.trim();
    if (id) go(["queues", queue, "tasks", id]);
  };
  return h("form", { class: "row", on: { submit } },
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

function heldTable(queue, tasks) {
  return table("Tasks that are held", [
    { title: "Task", cell: taskLink(queue) },
    { title: "Held by", cell: (one) => (one.user
      ? [h("a", { href: link(["consumers"], { queue, user: one.user }) }, one.user),
        one.name ? ` ${one.name}` : ""] : "nobody that a node knows") },
    { title: "Runs at", cell: (one) => [one.host || one.address || "–",
      one.pid ? ` process ${one.pid}` : ""] },
    { title: "Node", cell: (one) => one.node || "–" },
    { title: "Since", cell: (one) => time(one.since_ms) },
    { title: "Lease ends", cell: (one) => time(one.lease_end_ms) },
  ], tasks, { key: (one) => one.id });
}

function settingsOf(queue, settings, again) {
  const edit = async () => (await actions.changeSetting(queue, settings)) && again();
  return h("section", { "data-key": "settings" }, h("details", {}, h("summary", {}, "Settings"),
    h("div", { class: "card" }, facts(Object.entries(settings).map(([name, value]) =>
      [name, h("code", {}, String(value))]))),
    actions.mayAdmin(queue) ? h("p", {}, h("button", { type: "button", on: { click: edit } },
      "Change a setting …")) : null));
}
