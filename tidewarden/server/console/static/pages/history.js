/** Which plots the figures of `/v1/history` and of one queue's history make. */

const RATES = ["puts", "takes", "acks", "fails", "expired"];
const BACKLOG = ["ready", "delayed", "leased", "buried"];
const TIMES = ["oldest_ready_ms", "lateness_ms", "lateness_p99_ms", "lateness"];
const REFRESHES = ["refreshes", "refreshes_failed"];

const nameOf = (name) => name.replace(/_ms$/, "").replaceAll("_", " ");

/** The plots' specs: rates, tasks by state, times, refreshes. */
export function figures({ step_ms, from_ms, series }) {
  const pick = (names) => names.filter((name) => series[name]?.length);
  const perSecond = (values) =>
    values.map((value) => (value === null ? null : (value * 1000) / step_ms));
  const lines = (names, change = (values) => values) =>
    names.map((name) => ({ label: nameOf(name), values: change(series[name]) }));
  const made = (title, unit, names, change) =>
    ({ title, unit, from_ms, step_ms, series: lines(names, change) });
  return [
    made("Tasks a second", "/s", pick(RATES), perSecond),
    made("Tasks by state", "", pick(BACKLOG)),
    made("Lateness and age of the oldest ready task", "ms", pick(TIMES)),
    made("Refreshes a second", "/s", pick(REFRESHES), perSecond),
  ].filter((one) => one.series.length);
}
