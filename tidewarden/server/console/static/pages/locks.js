/** The list of locks: who holds which, until when; a release of one whose holder is stuck. */

import { get, getIf, path, post, query as queryOf } from "../api.js";
import { act, ask } from "../dialog.js";
import { h } from "../dom.js";
import { time } from "../format.js";
import { link } from "../router.js";
import { may } from "../session.js";
import { table } from "../table.js";

const PAGE = 100;

/** Makes the page. */
export function locksPage(query) {
  const after = query.get("after") ?? "";
  return {
    title: "Locks",
    every_ms: 3000,
    load: (signal) => get(`/v1/locks${queryOf({ count: PAGE, after })}`, signal),
    view: ({ locks, after: next }, again) => [
      list(locks, again),
      h("div", { class: "actions" },
        after ? h("a", { class: "button", href: link(["locks"]) }, "First page") : null,
        next ? h("a", { class: "button", href: link(["locks"], { after: next }) }, "Next page")
          : null),
    ],
  };
}

function list(locks, again) {
  return table("Locks that are held", [
    { title: "Lock", cell: (one) => one.name },
    { title: "Fence number", number: true, cell: (one) => h("code", {}, String(one.fence)) },
    { title: "Held at node", cell: (one) => one.node || "–" },
    { title: "Lease ends", cell: (one) => time(one.lease_end_ms, true) },
    { title: "Bound to", cell: (one) => (one.session ? ["session ", h("code", {}, one.session)]
      : one.keyed ? "a key" : "its connection") },
    { title: "What can be done", cell: (one) => (may("lock", one.name)
      ? h("button", { type: "button", "aria-label": `Release ${one.name}`,
        on: { click: async () => (await release(one)) && again() } }, "Release …") : "–") },
  ], locks, { key: (one) => one.name, empty: "Nobody holds a lock." });
}

async function release({ name, fence }) {
  const held = await getIf(path`/v1/locks/${name}`);
  const who = held?.user
    ? ` (${held.user}, ${held.client || held.address || "by HTTP"} at ${held.host || "–"})` : "";
  const answer = await ask({
    title: "Release the lock?",
    text: ["Whoever holds ", h("code", {}, name), who, " is not told, and may go on with what it",
      " does: only what checks fence numbers is safe from it. The next waiter gets the lock at",
      " once."],
    verb: "Release",
    danger: true,
    typed: name,
  });
  return answer && act(() => post(path`/v1/locks/${name}/release`, { fence }),
    `${name} is released.`);
}
