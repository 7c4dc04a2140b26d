/** What happens to accounts, providers and stores, as it happens. */

import { h } from "../dom.js";
import { now, time } from "../format.js";
import { EventStream } from "../event_stream.js";
import { change, link } from "../router.js";
import { table } from "../table.js";
import { toolbar } from "./toolbar.js";
import { accountLink } from "./tokens.js";

const KEPT = 500;
const HOUR_MS = 3_600_000;
const SINCE = [["1", "the last hour"], ["24", "the last day"], ["168", "the last week"],
  ["0", "all that are kept"]];
const TYPES = [["", "all"], ["account.*", "accounts"], ["provider.*", "providers"],
  ["store.*", "stores"]];
const WELL = /(recovered|closed|over|answers|added|confirmed)$/;
const ILL = /(dead|stopped|breaker_open|silent|removed|store\.recovered)$/;
const NAMED = ["cluster", "provider", "account", "message", "error", "node", "view"];

/** Makes the page; what is chosen stands in the address. */
export function eventsPage(query) {
  const hours = Number(query.get("since") ?? "24");
  const wanted = { types: query.get("types") ?? "", provider: query.get("provider") ?? "" };
  const find = query.get("find") ?? "";
  const after = hours ? `${Math.max(0, now() - hours * HOUR_MS)}-0` : "0";
  const rows = [];
  const stream = new EventStream(wanted, after, (event) => {
    // At the beginning it only says that nothing lies exactly there.
    if (event.type === "gap" && !rows.length) return;
    rows.unshift(event);
    rows.length = Math.min(rows.length, KEPT);
  });
  return {
    title: "Events",
    every_ms: 1000,
    load: async () => rows.filter((one) => JSON.stringify(one.data).includes(find)),
    view: (shown) => [
      toolbar([
        { name: "types", label: "About", value: wanted.types, options: TYPES },
        { name: "provider", label: "Provider", value: wanted.provider },
        { name: "since", label: "From", value: String(hours), options: SINCE },
        { name: "find", label: "Has the words", value: find },
      ], change),
      h("p", { class: stream.state === "live" ? "quiet" : "note warn" },
        stream.state === "live" ? `Live; the newest first, at most ${KEPT}.`
          : `Not live: ${stream.state}`),
      list(shown),
    ],
    leave: () => stream.stop(),
  };
}

function list(rows) {
  return table("Events", [
    { title: "When", cell: (one) => time(Date.parse(one.data.timestamp) || 0, true) },
    { title: "What", cell: (one) => h("span", { class: `tag ${ILL.test(one.type) ? "ill"
      : WELL.test(one.type) ? "well" : "warn"}` }, one.type) },
    { title: "About", cell: (one) => subject(one.data.data ?? {}) },
    { title: "Why", cell: (one) => why(one.data) },
  ], rows, { key: (one) => one.id, empty: "Nothing has happened in that time." });
}

function subject({ account, provider, node }) {
  if (account) return accountLink(account);
  if (provider) return h("a", { href: link(["tokens", "provider", provider]) }, provider);
  return node ?? "–";
}

function why({ data = {}, message }) {
  const rest = Object.entries(data).filter(([name, value]) =>
    !NAMED.includes(name) && value !== "" && value !== 0 && typeof value !== "object");
  return [data.error ? h("b", {}, data.error, " ") : null, data.message ?? message ?? "",
    rest.length ? h("span", { class: "quiet" }, ` ${rest.map(([name, value]) =>
      `${name.replaceAll("_", " ")} ${value}`).join(", ")}`) : null];
}
