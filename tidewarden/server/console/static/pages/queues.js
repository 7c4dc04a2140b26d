/** The list of queues: counts by state, rates, and how long tasks have waited. */

import { get, getIf, query as queryOf } from "../api.js";
import { h } from "../dom.js";
import { duration, now, number, rounded } from "../format.js";
import { change, link } from "../router.js";
import { table } from "../table.js";
import { toolbar } from "./toolbar.js";

const SORTS = {
  name: (one, other) => (one.queue < other.queue ? -1 : 1),
  ready: (one, other) => other.ready - one.ready,
  buried: (one, other) => other.buried - one.buried,
  oldest: (one, other) => (lateBy(other) ?? -1) - (lateBy(one) ?? -1),
  total: (one, other) => other.total - one.total,
};
const PAGE = 200;
const TOPICS_EVERY_MS = 30_000;

/** Makes the page. */
export function queuesPage(query) {
  const sort = query.get("sort") || "name";
  const filter = query.get("find") ?? "";
  const after = query.get("after") ?? "";
  let before = null;
  let [topics, topics_ms] = [null, 0];
  return {
    title: "Queues",
    every_ms: 3000,
    async load(signal) {
      const page = await get(`/v1/queues${queryOf({ count: PAGE, after })}`, signal);
      const rows = page.queues;
      if (Date.now() - topics_ms >= TOPICS_EVERY_MS) {
        topics = await getIf("/v1/topics", signal);
        topics_ms = Date.now();
      }
      const found = { rows, next: page.after, topics: topics?.topics ?? [],
        rates: ratesOf(rows, before) };
      before = { at_ms: Date.now(), rows: new Map(rows.map((row) => [row.queue, row])) };
      return found;
    },
    view({ rows, rates, next, topics: linked }) {
      const wanted = rows.filter((row) => row.queue.includes(filter))
        .sort(SORTS[sort] ?? SORTS.name);
      return [
        toolbar([
          { name: "find", label: "Name has", value: filter },
          { name: "sort", label: "Order by", value: sort, options: Object.keys(SORTS) },
        ], change),
        list(wanted, rates),
        h("div", { class: "actions" },
          after ? h("a", { class: "button", href: link(["queues"], { sort }) }, "First page")
            : null,
          next ? h("a", { class: "button", href: link(["queues"], { sort, after: next }) },
            `Queues after ${next}`) : null),
        linked.length ? topicsOf(linked) : null,
      ];
    },
  };
}

function topicsOf(topics) {
  return h("section", {}, h("h2", {}, "Topics"),
    h("p", { class: "quiet" }, "What is put into a topic reaches each of its queues."),
    table("Topics", [
      { title: "Topic", cell: (one) => one.topic },
      { title: "Queues", cell: (one) => one.queues.map((queue, index) =>
        [index ? ", " : "", h("a", { href: link(["queues", queue]) }, queue)]) },
    ], topics, { key: (one) => `topic ${one.topic}` }));
}

/** How late the oldest ready task is, or null. */
export function lateBy(row) {
  if (row.oldest_ready_ms >= 0) return row.oldest_ready_ms;
  const deadline_ms = row.oldest_ready_deadline_ms;
  return row.ready && deadline_ms > 0 ? Math.max(0, now() - deadline_ms) : null;
}

function ratesOf(rows, before) {
  if (!before) return new Map();
  const seconds = (Date.now() - before.at_ms) / 1000;
  return new Map(rows.map((row) => {
    const old = before.rows.get(row.queue);
    const rate = (name) => Math.max(0, (row[name] ?? 0) - (old?.[name] ?? 0)) / seconds;
    return [row.queue, old && { puts: rate("count_put"), takes: rate("count_taken"),
      acks: rate("count_acked") }];
  }));
}

function list(rows, rates) {
  const rate = (name) => (row) => {
    const found = rates.get(row.queue);
    return found ? `${rounded(found[name])}/s` : "–";
  };
  const count = (name) => (row) => number(row[name] ?? 0);
  const listed = (state, kind) => (row) => (row[state]
    ? h("a", { class: kind, href: link(["queues", row.queue], { state }) }, number(row[state]))
    : "0");
  return table("Queues", [
    { title: "Queue", cell: (row) => [h("a", { href: link(["queues", row.queue]) }, row.queue),
      row.paused_until_ms ? [" ", h("span", { class: "tag warn" }, "paused")] : null] },
    { title: "Ready", number: true, cell: count("ready") },
    { title: "Delayed", number: true, cell: count("delayed") },
    { title: "Leased", number: true, cell: listed("leased", null) },
    { title: "Buried", number: true, cell: listed("buried", "illtext") },
    { title: "Oldest ready is late by", number: true, cell: (row) => {
      const late = lateBy(row);
      return late === null ? "–" : duration(late);
    } },
    { title: "Puts", number: true, cell: rate("puts") },
    { title: "Takes", number: true, cell: rate("takes") },
    { title: "Acks", number: true, cell: rate("acks") },
    { title: "Waiting takers", number: true, cell: (row) => number(row.waiting_takes_here ?? 0) },
  ], rows, { key: (row) => row.queue, empty: "There is no queue. The first put makes one." });
}
