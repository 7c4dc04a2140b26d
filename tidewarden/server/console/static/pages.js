/**
 * Which page an address means.
 *
 * A page is an object: `title`; `every_ms`, how often it asks; `load(signal)`, what it asks for;
 * `view(found, again)`, its elements; perhaps `leave()`, `without(error)`, and `overview`: it asks
 * for the overview anyway.
 */

import { h } from "./dom.js";
import { accountPage } from "./pages/account.js";
import { auditPage } from "./pages/audit.js";
import { consumersPage } from "./pages/consumers.js";
import { eventsPage } from "./pages/events.js";
import { locksPage } from "./pages/locks.js";
import { overviewPage } from "./pages/overview.js";
import { providerPage } from "./pages/provider.js";
import { queuePage } from "./pages/queue.js";
import { queuesPage } from "./pages/queues.js";
import { schedulePage } from "./pages/schedule.js";
import { schedulesPage } from "./pages/schedules.js";
import { nextDayPage } from "./pages/schedules_next.js";
import { taskPage } from "./pages/task.js";
import { tokensPage } from "./pages/tokens.js";
import { trafficPage } from "./pages/traffic.js";

/** The page of an address of `router.here()`. */
export function pageOf({ names, query }) {
  const [noun = "", first, second, third] = names;
  switch (noun) {
    case "":
      return overviewPage();
    case "queues":
      if (second === "tasks" && third !== undefined) return taskPage(first, third);
      return first === undefined ? queuesPage(query) : queuePage(first, query);
    case "tokens":
      if (first === "account" && second) return accountPage(second);
      if (first === "provider" && second) return providerPage(second);
      return tokensPage(query);
    case "schedules":
      if (first === "schedule" && second) return schedulePage(second);
      return first === "next" ? nextDayPage() : schedulesPage(query);
    case "consumers":
      return consumersPage(query);
    case "locks":
      return locksPage(query);
    case "events":
      return eventsPage(query);
    case "traffic":
      return trafficPage(query);
    case "audit":
      return auditPage(query);
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
