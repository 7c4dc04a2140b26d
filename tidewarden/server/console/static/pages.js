/**
 * Which page an address means.
 *
 * A page is an object: `title`; `every_ms`, how often it asks; `load(signal)`, what it asks for;
 * `view(found, again)`, its elements; perhaps `leave()`, `without(error)`, and `overview`: it asks
 * for the overview anyway.
 */

import { overviewPage } from "./pages/overview.js";
import { queuesPage } from "./pages/queues.js";
import { queuePage } from "./pages/queue.js";
import { taskPage } from "./pages/task.js";
import { h } from "./dom.js";

/** The page of an address of `router.here()`. */
export function pageOf({ names, query }) {
  const [noun = "", first, second, third] = names;
  switch (noun) {
    case "":
      return overviewPage();
    case "queues":
      if (second === "tasks" && third !== undefined) return taskPage(first, third);
      return first === undefined ? queuesPage(query) : queuePage(first, query);
    default:
      return nowhere();
  }
}

function nowhere() {
  return {
    title: "There is no such page",
    every_ms: 3_600_000,
    load: async () => null,
    view: () => h("p", {}, h("a", { href: "#/" }, "To the overview")),
  };
}
