/** The list of schedules: their next ticks; pause, resume, delete. */

import { get, path, post, remove } from "../api.js";
import { act, ask } from "../dialog.js";
import { h } from "../dom.js";
import { duration, time } from "../format.js";
import { change, link } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";
import { payloadOf } from "./payload.js";
import { toolbar } from "./toolbar.js";

const ROWS_MAX = 500;
const STATES = { active: "well", paused: "warn", stuck: "ill", unreadable: "ill" };

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
        toolbar([{ name: "find", label: "Name or queue has", value: find }], change),
        list(rows.slice(0, ROWS_MAX), again),
        rows.length > ROWS_MAX ? h("p", { class: "quiet" },
          `${rows.length - ROWS_MAX} more: name a part.`) : null,
      ];
    },
  };
}

function list(rows, again) {
  return table("Schedules", [
    { title: "Schedule", cell: (one) => one.name },
    { title: "State", cell: (one) =>
      h("span", { class: `tag ${STATES[one.state] ?? ""}` }, one.state) },
    { title: "Ticks", cell: triggerOf },
    { title: "Next", cell: (one) => time(one.next_ms, true) },
    { title: "Missed ticks", cell: (one) => one.catchup },
    { title: "Queue", cell: (one) =>
      h("a", { href: link(["queues", one.queue]) }, one.queue) },
    { title: "Task", cell: (one) => h("details", {}, h("summary", {}, "Payload"),
      payloadOf(one.payload, one.payload_base64)) },
    { title: "What can be done", cell: (one) => buttons(one, again) },
  ], rows, { key: (one) => one.name, empty: "There is no schedule." });
}

function triggerOf(one) {
  if (one.cron) return [h("code", {}, one.cron), ` ${one.zone ?? "UTC"}`];
  if (one.every_ms) return `every ${duration(one.every_ms)}`;
  return one.at_ms ? ["once, ", time(one.at_ms, true)] : one.kind ?? "–";
}

function buttons({ name, state }, again) {
  if (!may("schedule", name)) return "–";
  const button = (text, work, danger) => h("button", { type: "button",
    class: danger ? "danger" : null, "aria-label": `${text} ${name}`,
    on: { click: async () => (await work()) && again() } }, text);
  const forget = async () => await ask({ title: "Delete the schedule?",
    text: [h("code", {}, name), " puts nothing more. Tasks that it has put stay."],
    verb: "Delete", danger: true })
    && act(() => remove(path`/v1/schedules/${name}`), `${name} is deleted.`);
  return h("span", { class: "row" },
    state === "paused"
      ? button("Resume", () => act(() => post(path`/v1/schedules/${name}/resume`),
        `${name} goes on.`))
      : button("Pause", () => act(() => post(path`/v1/schedules/${name}/pause`),
        `${name} is paused.`)),
    button("Run now", () => act(() => post(path`/v1/schedules/${name}/run`),
      (told) => `${told.id} is put.`)),
    button("Delete …", forget, true));
}
