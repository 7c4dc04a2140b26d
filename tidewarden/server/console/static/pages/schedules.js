/** The list of schedules: their next ticks, what became of their last; what can be done. */

import { get, path, post, remove } from "../api.js";
import { act, ask } from "../dialog.js";
import { h } from "../dom.js";
import { duration, time } from "../format.js";
import { change, go, link } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";
import { toolbar } from "./toolbar.js";

const ROWS_MAX = 500;
const STATES = { active: "well", paused: "warn", stuck: "ill", unreadable: "ill" };
const ENDS = { done: "well", buried: "ill", deleted: "warn", unknown: "warn" };
const GONE = ["done", "deleted", "unknown"];
const SAME_RUN_MS = 60_000;
const DOUBLE_CLICK_MS = 1_000;

/** Makes the page. */
export function schedulesPage(query) {
  const find = query.get("find") ?? "";
  return {
    title: "Schedules",
    every_ms: 5000,
    load: (signal) => get("/v1/schedules", signal),
    view({ schedules }, again) {
      const rows = schedules.filter((one) => `${one.name} ${one.queue}`.includes(find))
        .sort((one, other) => (one.name < other.name ? -1 : 1));
      return [
        toolbar([{ name: "find", label: "Name or queue has", value: find }], change,
          h("a", { class: "button", href: link(["schedules", "next"]) }, "The next day")),
        list(rows.slice(0, ROWS_MAX), again),
        rows.length > ROWS_MAX ? h("p", { class: "quiet" },
          `${rows.length - ROWS_MAX} more: name a part.`) : null,
      ];
    },
  };
}

function list(rows, again) {
  return table("Schedules", [
    { title: "Schedule", cell: (one) => scheduleLink(one.name) },
    { title: "State", cell: stateOf },
    { title: "Ticks", cell: triggerOf },
    { title: "Next", cell: (one) => time(one.next_ms, true) },
    { title: "Last run", cell: lastOf },
    { title: "Queue", cell: (one) =>
      h("a", { href: link(["queues", one.queue]) }, one.queue) },
    { title: "What can be done", cell: (one) => buttons(one, again) },
  ], rows, { key: (one) => one.name, empty: "There is no schedule." });
}

/** A link to a schedule's own page. */
export const scheduleLink = (name) =>
  h("a", { href: link(["schedules", "schedule", name]) }, name);

/** Whether it ticks. */
export const stateOf = ({ state }) => h("span", { class: `tag ${STATES[state] ?? ""}` }, state);

/** When it ticks. */
export function triggerOf(one) {
  if (one.cron) return [h("code", {}, one.cron), ` ${one.zone ?? "UTC"}`];
  if (one.every_ms) return `every ${duration(one.every_ms)}`;
  return one.at_ms ? ["once, ", time(one.at_ms, true)] : one.kind ?? "–";
}

/** What became of the task of its last run, which is linked while it is there. */
export function lastOf({ last, queue }) {
  if (!last) return "–";
  const state = h("span", { class: `tag ${ENDS[last.state] ?? ""}` }, last.state);
  const took = last.ended_ms ? ` after ${duration(Math.max(0, last.ended_ms - last.put_ms))}` : "";
  return h("span", { class: "row" },
    GONE.includes(last.state) ? state
      : h("a", { href: link(["queues", queue, "tasks", last.id]) }, state),
    h("span", {}, time(last.put_ms), took));
}

/** What the user may do with it; `gone` is called once it is deleted. */
export function buttons({ name, state }, again, gone = again) {
  if (!may("schedule", name)) return "–";
  const button = (text, work, danger) => h("button", { type: "button",
    class: danger ? "danger" : null, "aria-label": `${text} ${name}`,
    on: { click: async () => (await work()) && again() } }, text);
  const forget = async () => {
    const sure = await ask({ title: "Delete the schedule?",
      text: [h("code", {}, name), " puts nothing more. Tasks that it has put stay."],
      verb: "Delete", danger: true });
    if (sure && await act(() => remove(path`/v1/schedules/${name}`), `${name} is deleted.`)) gone();
  };
  return h("span", { class: "row" },
    state === "paused"
      ? button("Resume", () => act(() => post(path`/v1/schedules/${name}/resume`),
        `${name} goes on.`))
      : button("Pause", () => act(() => post(path`/v1/schedules/${name}/pause`),
        `${name} is paused.`)),
    button("Run now", () => runNow(name)),
    button("Delete …", forget, true));
}

const runs = new Map();

/**
 * Puts a schedule's task. Until a second after that was answered, another click is the same run,
 * and so is one within a minute after no answer came.
 */
export async function runNow(name) {
  const known = runs.get(name);
  const run = known && Date.now() < known.until_ms ? known
    : { id: randomId(), until_ms: Date.now() + SAME_RUN_MS };
  runs.set(name, run);
  const done = await act(() => post(path`/v1/schedules/${name}/run`, { id: run.id }),
    (told) => `${told.id} is put.`);
  if (done) run.until_ms = Date.now() + DOUBLE_CLICK_MS;
  return done;
}

const randomId = () =>
  [...crypto.getRandomValues(new Uint32Array(3))].map((one) => one.toString(36)).join("-");

/** Goes to the list. */
export const toList = () => go(["schedules"]);
