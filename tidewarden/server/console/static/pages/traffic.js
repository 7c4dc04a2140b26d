/** Who sends what: the heaviest users, verbs, queues and peers, over all nodes. */

import { get, query as queryOf } from "../api.js";
import { h } from "../dom.js";
import { bytes, counted, duration, number, rounded } from "../format.js";
import { change, link } from "../router.js";
import { table } from "../table.js";
import { toolbar } from "./toolbar.js";

const BY = ["user", "verb", "queue", "peer", "request"];
const SORTS = ["requests", "bytes", "errors", "time"];
const OVER = [["minute", "the last minute"], ["start", "since the nodes started"]];
const TOP = 50;

/** Makes the page; what is chosen stands in the address. */
export function trafficPage(query) {
  const by = query.get("by") ?? "user";
  const sort = query.get("sort") ?? "requests";
  const over = query.get("over") ?? "minute";
  return {
    title: "Traffic",
    every_ms: 3000,
    load: (signal) => get(`/v1/traffic${queryOf({ by, sort, over, top: TOP })}`, signal),
    view: (found) => [
      toolbar([
        { name: "by", label: "By", value: by, options: BY },
        { name: "sort", label: "Order by", value: sort, options: SORTS },
        { name: "over", label: "Over", value: over, options: OVER },
      ], change),
      sums(found),
      found.unreachable?.length ? h("p", { class: "note warn" }, "Not counted: ",
        found.unreachable.map((one) => `${one.node} (${one.why})`).join(", ")) : null,
      list(found),
    ],
  };
}

function sums({ total, seconds, nodes }) {
  if (!total) return null;
  return h("p", { class: "quiet" }, `${counted(total.requests, "request")} in`
    + ` ${duration(seconds * 1000)} at ${counted(nodes.length, "node")}: ${bytes(total.bytes_in)}`
    + ` in, ${bytes(total.bytes_out)} out, ${counted(total.errors, "error")}.`);
}

function list({ rows, total }) {
  return table("Traffic", [
    { title: "Who", cell: whoOf },
    { title: "Requests", number: true, cell: (row) => [number(row.requests),
      row.error ? h("span", { class: "quiet" }, ` to ${
        number(row.requests + row.error.requests)}`) : null] },
    { title: "A second", number: true, cell: (row) => `${rounded(row.requests_per_s)}/s` },
    { title: "Share", number: true, cell: (row) => (total?.requests
      ? `${rounded((100 * row.requests) / total.requests)} %` : "–") },
    { title: "In", number: true, cell: (row) => bytes(row.bytes_in) },
    { title: "Out", number: true, cell: (row) => bytes(row.bytes_out) },
    { title: "Errors", number: true, cell: (row) =>
      (row.errors ? h("b", { class: "illtext" }, number(row.errors)) : "0") },
    { title: "Time each", number: true, cell: (row) =>
      (row.requests ? micros(row.us / row.requests) : "–") },
  ], rows, { key: keyOf, empty: "Nobody has sent anything in that time." });
}

const micros = (us) => (us < 1000 ? `${rounded(us)} µs` : duration(us / 1000));
const keyOf = (row) => [row.user, row.verb, row.kind, row.name, row.peer].join(" ");

function whoOf(row) {
  const parts = [];
  if (row.user !== undefined) parts.push(row.user || "(nobody in particular)");
  if (row.verb !== undefined) parts.push(h("code", {}, row.verb));
  if (row.name) {
    const place = { queue: ["queues", row.name], provider: ["tokens", "provider", row.name] };
    const way = place[row.kind];
    parts.push([way ? h("a", { href: link(way) }, row.name) : row.name,
      row.kind && row.kind !== "queue" ? h("span", { class: "quiet" }, ` (${row.kind})`) : null]);
  }
  if (row.peer !== undefined) parts.push(h("code", {}, row.peer || "–"));
  return parts.length ? parts.map((part, index) => [index ? " · " : "", part]) : "(no name)";
}
