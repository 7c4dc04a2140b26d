/** Writes numbers with their units, and times both as what passed and as what a clock showed. */

import { h } from "./dom.js";

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const ZONE_KEY = "tidewarden.zone";

let ahead_ms = 0;

/** Learns from an answer what the cluster's clock says: that of a laptop may be off by minutes. */
export function learnClock(at_ms) {
  if (at_ms > 0) ahead_ms = at_ms - Date.now();
}

/** The cluster's time, unix milliseconds. */
export const now = () => Date.now() + ahead_ms;

/** Whether times are shown in UTC; else in the browser's own zone. */
export const inUtc = () => localStorage.getItem(ZONE_KEY) !== "local";

/** Changes that. */
export const setUtc = (utc) => localStorage.setItem(ZONE_KEY, utc ? "utc" : "local");

/** The zone in which times are shown, in words. */
export const zoneName = () =>
  inUtc() ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";

const two = (number) => String(number).padStart(2, "0");

function parts(at_ms, utc) {
  const date = new Date(at_ms);
  return utc
    ? [date.getUTCFullYear(), date.getUTCMonth() + 1, date.getUTCDate(), date.getUTCHours(),
       date.getUTCMinutes(), date.getUTCSeconds()]
    : [date.getFullYear(), date.getMonth() + 1, date.getDate(), date.getHours(),
       date.getMinutes(), date.getSeconds()];
}

/** `2026-11-22 23:08:57`, in the zone that is chosen. */
export function absolute(at_ms, utc = inUtc()) {
  const [year, month, day, hour, minute, second] = parts(at_ms, utc);
  return `${year}-${two(month)}-${two(day)} ${two(hour)}:${two(minute)}:${two(second)}`;
}

/** `23:08:57`, with the date if that is not today's. */
export function clockTime(at_ms) {
  const text = absolute(at_ms);
  return text.slice(0, 10) === absolute(now()).slice(0, 10) ? text.slice(11) : text;
}

/** A length of time by its two greatest units: `3 min 12 s`. */
export function duration(ms) {
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < 10 * SECOND) return `${(ms / SECOND).toFixed(1)} s`;
  if (ms < MINUTE) return `${Math.floor(ms / SECOND)} s`;
  const [unit, name, smaller, lesser] =
    ms < HOUR ? [MINUTE, "min", SECOND, "s"]
    : ms < DAY ? [HOUR, "h", MINUTE, "min"]
    : [DAY, "d", HOUR, "h"];
  const rest = Math.floor((ms % unit) / smaller);
  return `${Math.floor(ms / unit)} ${name}${rest ? ` ${rest} ${lesser}` : ""}`;
}

/** `8 s ago`, `in 2 min 3 s`. */
export function relative(at_ms) {
  const passed = now() - at_ms;
  if (Math.abs(passed) < SECOND) return "now";
  const long = duration(Math.max(SECOND, Math.floor(Math.abs(passed) / SECOND) * SECOND));
  return passed > 0 ? `${long.replace(".0", "")} ago` : `in ${long.replace(".0", "")}`;
}

/** A time as an element that ages by itself; both zones are in its title. */
export function time(at_ms, full = false) {
  if (!at_ms || at_ms < 0) return "–";
  const date = new Date(at_ms);
  if (Number.isNaN(date.getTime())) return "–";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local";
  return h(
    "time",
    {
      datetime: date.toISOString(),
      title: `${absolute(at_ms, true)} UTC · ${absolute(at_ms, false)} ${zone}`,
      "data-at": at_ms,
      "data-full": full,
    },
    timeText(at_ms, full),
  );
}

const timeText = (at_ms, full) =>
  full ? `${clockTime(at_ms)} ${zoneName()} (${relative(at_ms)})` : relative(at_ms);

/** Lets all times on the page grow older. */
export function ageTimes() {
  for (const element of document.querySelectorAll("time[data-at]")) {
    const text = timeText(Number(element.dataset.at), "full" in element.dataset);
    if (element.textContent !== text) element.textContent = text;
  }
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** `12,345`. */
export const number = (value) =>
  value === null || value === undefined || Number.isNaN(value) ? "–" : whole.format(value);

/** `0.25`, `1,230`: as precise as a rate is known. */
export const rounded = (value) => (Math.abs(value) >= 1000 ? whole : short).format(value);

/** `12 tasks`, `1 task`. */
export const counted = (count, one, many = `${one}s`) =>
  `${number(count)} ${count === 1 ? one : many}`;

/** `3.1 MiB`. */
export function bytes(count) {
  if (count < 1024) return `${count} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let unit = -1;
  do {
    count /= 1024;
    unit += 1;
  } while (count >= 1024 && unit < units.length - 1);
  return `${short.format(count)} ${units[unit]}`;
}

/** A length of time by one unit: `2.5 min`, as beside a plot. */
export function brief(ms) {
  const [unit, name] = ms < SECOND ? [1, "ms"] : ms < MINUTE ? [SECOND, "s"]
    : ms < HOUR ? [MINUTE, "min"] : ms < DAY ? [HOUR, "h"] : [DAY, "d"];
  return `${rounded(ms / unit)} ${name}`;
}

/** Steps between such lengths that read well, milliseconds. */
export const BRIEF_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500,
  ...[1, 2, 5, 10, 20, 30].map((one) => one * SECOND),
  ...[1, 2, 5, 10, 20, 30].map((one) => one * MINUTE),
  ...[1, 2, 6, 12].map((one) => one * HOUR),
  ...[1, 2, 5, 10, 50, 100, 1000].map((one) => one * DAY)];

const ms = (value) => (value >= 0 ? duration(value) : `−${duration(-value)}`);
/** How a plot's and a table's figures of a unit are written. */
export const UNITS = {
  "": (value) => rounded(value),
  "/s": (value) => `${rounded(value)}/s`,
  ms,
  bytes,
};
