/** What the schedules will put within the next day: hour by hour, the busy ones as rates. */

import { get } from "../api.js";
import { h } from "../dom.js";
import { absolute, number, time, zoneName } from "../format.js";
import { link } from "../router.js";
import { table } from "../table.js";
import { scheduleLink } from "./schedules.js";

const SHOWN = 20;

/** Makes the page. */
export function nextDayPage() {
  return {
    title: "The next day",
    every_ms: 15_000,
    load: (signal) => get("/v1/schedules:next", signal),
    view: ({ until_ms, ticks, rates, resting, more }) => [
      h("p", {}, "Up to ", time(until_ms, true), ". ",
        h("a", { href: link(["schedules"]) }, "All schedules")),
      more ? h("p", { class: "note warn" },
        "There are more than are shown here; it is complete up to this time.") : null,
      resting ? h("p", { class: "quiet" },
        `Schedules that are paused, stuck or unreadable: ${number(resting)}.`) : null,
      rates.length ? h("section", {}, h("h2", {}, "More often than each half hour"),
        often(rates)) : null,
      h("section", {}, h("h2", {}, "Hour by hour"), hours(ticks)),
    ],
  };
}

/** Ticks by the hour in which they lie: `[["2026-11-22 23:00", [tick, …]], …]`. */
export function byHour(ticks) {
  const found = new Map();
  for (const tick of ticks) {
    const hour = `${absolute(tick.at_ms).slice(0, 13)}:00`;
    found.set(hour, [...(found.get(hour) ?? []), tick]);
  }
  return [...found];
}

function hours(ticks) {
  return table("Ticks by the hour", [
    { title: `Hour, ${zoneName()}`, cell: ([hour]) => hour },
    { title: "Tasks", number: true, cell: ([, list]) => number(list.length) },
    { title: "Schedules", cell: ([, list]) => [
      h("span", { class: "row" }, list.slice(0, SHOWN).map(tickOf)),
      list.length > SHOWN ? h("details", {},
        h("summary", {}, `${number(list.length - SHOWN)} more`),
        h("span", { class: "row" }, list.slice(SHOWN).map(tickOf))) : null,
    ] },
  ], byHour(ticks), { key: ([hour]) => hour, empty: "None." });
}

const tickOf = ({ name, at_ms }) =>
  h("span", {}, absolute(at_ms).slice(11).replace(/:00$/, ""), " ", scheduleLink(name));

function often(rates) {
  return table("Schedules that tick often", [
    { title: "Schedule", cell: ({ name }) => scheduleLink(name) },
    { title: "A day", number: true, cell: ({ per_day }) => number(per_day) },
    { title: "Next", cell: ({ next_ms }) => time(next_ms, true) },
    { title: "Queue", cell: ({ queue }) => h("a", { href: link(["queues", queue]) }, queue) },
  ], rates, { key: ({ name }) => name, empty: "None." });
}
