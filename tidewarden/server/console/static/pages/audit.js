/** Who read, put, exported or deleted which account, and who changed what. */

import { get, query as queryOf } from "../api.js";
import { h } from "../dom.js";
import { now, number, time } from "../format.js";
import { change } from "../router.js";
import { table } from "../table.js";
import { toolbar } from "./toolbar.js";
import { accountLink } from "./tokens.js";

const HOUR_MS = 3_600_000;
const SINCE = [["1", "the last hour"], ["24", "the last day"], ["168", "the last week"],
  ["0", "all that is kept"]];
const PAGE = 1000;
const PAGES_MAX = 10;
const SHOWN = 300;
const NAMES_MAX = 8;

/** Makes the page; what is chosen stands in the address. */
export function auditPage(query) {
  const hours = Number(query.get("since") ?? "24");
  const user = query.get("user") ?? "";
  const find = query.get("find") ?? "";
  const begin_ms = hours ? Math.max(0, now() - hours * HOUR_MS) : 0;
  let after = begin_ms ? `${begin_ms}-0.${begin_ms}-0` : "";
  let entries = [];
  return {
    title: "Audit",
    every_ms: 5000,
    async load(signal) {
      for (let pages = 0; pages < PAGES_MAX; pages += 1) {
        const page = await get(`/v1/audit${queryOf({ after, count: PAGE, user })}`, signal);
        entries = [...entries, ...page.entries].slice(-PAGE * 2);
        if (page.after === after || !page.after) break;
        after = page.after;
      }
      return entries.filter((one) => JSON.stringify(one).includes(find)).reverse();
    },
    view: (found) => [
      toolbar([
        { name: "user", label: "User", value: user },
        { name: "find", label: "Has the words", value: find },
        { name: "since", label: "From", value: String(hours), options: SINCE },
      ], change),
      list(found.slice(0, SHOWN)),
      found.length > SHOWN ? h("p", { class: "quiet" },
        `${number(found.length - SHOWN)} older ones are not shown.`) : null,
    ],
  };
}

function list(entries) {
  return table("The audit log, the newest first", [
    { title: "When", cell: (one) => time(one.at_ms, true) },
    { title: "User", cell: (one) => one.user || "–" },
    { title: "What", cell: (one) => h("code", {}, one.action) },
    { title: "Outcome", cell: (one) => h("span", { class: `tag ${
      (one.outcome ?? "ok") === "ok" ? "" : "warn"}` }, one.outcome ?? "ok") },
    { title: "Of what", cell: subjects },
    { title: "How often", number: true, cell: (one) => number(one.count ?? 1) },
    { title: "From", cell: (one) => (one.peer ? h("code", {}, one.peer) : "–") },
    { title: "Node", cell: (one) => one.node },
  ], entries, { empty: "Nothing is on record for that time." });
}

function subjects(entry) {
  const accounts = Object.entries(entry.accounts ?? {});
  const named = accounts.slice(0, NAMES_MAX).map(([name, count], index) => [
    index ? ", " : "", accountLink(name), count > 1 ? ` (${number(count)}×)` : ""]);
  const rest = accounts.length - NAMES_MAX;
  const words = (entry.words ?? []).join(" ");
  return [words && !accounts.length ? words : null, named,
    rest > 0 ? ` and ${number(rest)} more` : null, !words && !accounts.length ? "–" : null];
}
