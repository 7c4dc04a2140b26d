/** Who takes and holds tasks, over all nodes: what each holds, for how long, how fast; its end. */

import { get, path, post, query as queryOf, remove } from "../api.js";
import { act, ask } from "../dialog.js";
import { h } from "../dom.js";
import { counted, number, rounded, time } from "../format.js";
import { change, link } from "../router.js";
import { mayAll, whoami } from "../session.js";
import { table } from "../table.js";
import { toolbar } from "./toolbar.js";

const PAGE = 100;
const LOCKS = "_locks";

/** Makes the page; what is chosen stands in the address. */
export function consumersPage(query) {
  const chosen = Object.fromEntries(["queue", "user", "node"].map((name) =>
    [name, query.get(name) ?? ""]));
  const after = query.get("after") ?? "";
  let before = null;
  return {
    title: "Consumers",
    every_ms: 3000,
    async load(signal) {
      const page = await get(`/v1/consumers${queryOf({ ...chosen, count: PAGE, after })}`, signal);
      const rates = ratesOf(page.consumers, before);
      before = { at_ms: Date.now(), settled: settledOf(page.consumers) };
      return { ...page, rates };
    },
    view: ({ consumers, unreachable, rates, after: next }, again) => [
      toolbar([
        { name: "queue", label: "In the queue", value: chosen.queue },
        { name: "user", label: "User", value: chosen.user },
        { name: "node", label: "At the node", value: chosen.node },
      ], change),
      silent(unreachable),
      list(consumers, rates, again),
      h("div", { class: "actions" },
        after ? h("a", { class: "button", href: link(["consumers"], chosen) }, "First page") : null,
        next ? h("a", { class: "button", href: link(["consumers"], { ...chosen, after: next }) },
          "Next page") : null),
    ],
    without: () => h("p", {}, h("a", { href: link(["consumers"]) }, "All consumers")),
  };
}

/** Names the nodes whose consumers are not shown. */
export const silent = (unreachable) => (unreachable.length
  ? h("p", { class: "note warn" }, "Not shown, for they do not answer: ",
    unreachable.map((one) => `${one.node} (${one.why})`).join(", "))
  : null);

const settledOf = (rows) => new Map(rows.map((row) => [row.id, row.settled]));

/** How many tasks each ended a second since the page asked before. */
export function ratesOf(rows, before) {
  const seconds = before ? (Date.now() - before.at_ms) / 1000 : 0;
  const known = rows.filter((row) => seconds > 0 && before.settled.has(row.id));
  return new Map(known.map((row) =>
    [row.id, Math.max(0, row.settled - before.settled.get(row.id)) / seconds]));
}

/** How people call a consumer: its name, or where it comes from. */
export const nameOf = (row) => row.name || row.address || row.id;

function list(rows, rates, again) {
  return table("Consumers", [
    { title: "Consumer", cell: (row) => [nameOf(row), row.connections > 1
      ? h("span", { class: "quiet" }, ` ${number(row.connections)} connections`) : null] },
    { title: "User", cell: (row) => row.user },
    { title: "Runs at", cell: (row) => [row.host || "–", row.pid ? ` process ${row.pid}` : "",
      row.library ? h("span", { class: "quiet" }, ` ${row.library} ${row.version}`) : null] },
    { title: "Node", cell: (row) => [row.node, row.door === "resp" ? "" : ` ${row.door}`] },
    { title: "Since", cell: (row) => time(row.connected_ms) },
    { title: "Holds", cell: holdsOf },
    { title: "Longest since", cell: (row) => time(oldestOf(row)) },
    { title: "Waits in", cell: (row) => (row.waits.length ? named(row.waits) : "–") },
    { title: "Ends", number: true, cell: (row) =>
      (rates.has(row.id) ? `${rounded(rates.get(row.id))}/s` : "–") },
    { title: "What can be done", cell: (row) => (mayEnd(row)
      ? h("button", { type: "button", class: "danger", "aria-label": `End ${nameOf(row)}`,
        on: { click: async () => (await end(row)) && again() } }, "End …") : "–") },
  ], rows, { key: (row) => row.id, empty: "Nobody takes or holds anything." });
}

const oldestOf = (row) =>
  Math.min(...row.holds.map((hold) => hold.since_ms).filter((ms) => ms > 0), Infinity);

function holdsOf(row) {
  if (!row.tasks) return "–";
  const told = row.holds.map(({ queue, tasks }) => (queue === LOCKS
    ? [counted(tasks, "lock")]
    : [h("a", { href: link(["queues", queue], { state: "leased" }) }, queue),
      ` ${number(tasks)}`]));
  return told.map((part, index) => [index ? ", " : "", part]);
}

const named = (queues) => queues.map((queue, index) =>
  [index ? ", " : "", h("a", { href: link(["queues", queue]) }, queue)]);

/** Whether this user may end it; what HTTP holds without a session ends by its time. */
export const mayEnd = (row) => (row.session
  ? mayAll("admin") || row.user === whoami()?.user
  : mayAll("admin") && row.client > 0);

/** Ends a consumer; its name must be typed where it holds something. */
export async function end(row) {
  const name = nameOf(row);
  const holds = row.tasks
    ? ` The ${counted(row.tasks, "task")} that it holds are ready again at once: others get them`
      + " while it may still work on them."
    : "";
  const answer = await ask({
    title: "End the consumer?",
    text: [h("code", {}, name), " of ", h("b", {}, row.user), row.session
      ? " loses its session at every node." : " loses its connection.", holds,
    " It may come again: only its user's removal keeps it out."],
    verb: "End it",
    danger: true,
    ...(row.tasks ? { typed: name } : {}),
  });
  if (!answer) return false;
  return row.session
    ? act(() => remove(path`/v1/sessions/${row.session}`), `${name} is ended.`)
    : act(() => post("/v1/consumers/close", { client: row.client, node: row.node }),
      ({ closed }) => (closed ? `${name} is ended.` : `${name} was gone already.`));
}
