/** Which plots the figures of `/v1/history` and of one queue's history make. */

const RATES = ["puts", "takes", "acks", "fails", "expired"];
const BACKLOG = ["ready", "delayed", "leased", "buried", "waiting"];
const TIMES = ["oldest_ready_ms"];
const OF_NODE = ["connections", "waiting_takes"];
const NAMES = { oldest_ready_ms: "oldest ready task", refreshes: "refreshed" };

const nameOf = (name) => NAMES[name] ?? name.replaceAll("_", " ");

/** The plots' specs: rates, tasks by state, how late tasks are, refreshes, and of the node. */
export function figures({ step_ms, from_ms, series }) {
  // What is counted comes as how many there were within each step.
  const perSecond = (value) => (value === null ? null : (value * 1000) / step_ms);
  const made = (title, unit, names) => ({
    title,
    unit,
    from_ms,
    step_ms,
    series: names.filter((name) => series[name]?.length)
      .map((name) => ({
        label: nameOf(name),
        values: unit === "/s" ? series[name].map(perSecond) : series[name],
      })),
  });
  return [
    made("Tasks a second", "/s", RATES),
    made("Tasks by state", "", BACKLOG),
    made("How late tasks are", "ms", TIMES),
    made("Accounts refreshed a second", "/s", ["refreshes"]),
    made("Requests to this node a second", "/s", ["requests"]),
    made("Connections of this node", "", OF_NODE),
  ].filter((one) => one.series.length);
}
