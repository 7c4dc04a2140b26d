/** What is around every page: the pages' names, how the cluster is, the banner, the foot. */

import { connection } from "./api.js";
import { act } from "./dialog.js";
import { h, show } from "./dom.js";
import { absolute, clockTime, duration, inUtc, number, setUtc, zoneName } from "./format.js";
import { link } from "./router.js";
import { logout, may, mayAll, whoami } from "./session.js";

const place = (id) => document.getElementById(id);
const QUEUE = ["put", "take", "stats", "admin"];
const TOKEN = ["token:read", "token:write", "token:admin"];

/** The pages: the address, the name, and which right makes it worth showing. */
const PAGES = [
  ["", "Overview", () => true],
  ["queues", "Queues", () => may(QUEUE)],
  ["consumers", "Consumers", () => may(["take", "admin"])],
  ["tokens", "Tokens", () => may(TOKEN) || whoami().open],
  ["schedules", "Schedules", () => may("schedule")],
  ["locks", "Locks", () => may("lock")],
  ["events", "Events", () => may(TOKEN) || whoami().open],
  ["traffic", "Traffic", () => mayAll("admin")],
  ["audit", "Audit", () => mayAll("admin") && !whoami().open],
];

let known = [];
let overview = null;

/** The other nodes' consoles, as the last overview named them. */
export const nodes = () => known;

/** Shows the pages' names; null: nobody is logged in. */
export function showNav(current) {
  const nav = place("nav");
  nav.hidden = place("health").hidden = current === null;
  if (current === null) return;
  show(nav, h("ul", {}, PAGES.filter(([, , worth]) => worth()).map(([name, title]) =>
    h("li", {}, h("a", { href: link(name ? [name] : []),
      "aria-current": name === current ? "page" : null }, title)))));
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

/** The address of a node's console: its host, and the port beside the one of Redis clients. */
export function consoleOf(node) {
  if (node.http) return node.http;
  const found = /^(.*):(\d+)$/.exec(node.address ?? "");
  return found ? `${location.protocol}//${found[1]}:${Number(found[2]) + 1}` : "";
}

/** Shows in the head how the cluster is. */
export function showHealth(found) {
  if (found) overview = found;
  if (connection.since_ms || !overview) {
    return show(place("health"), h("a", { href: "#/", class: "ill" }, "No answer"));
  }
  found = overview;
  const own = whoami()?.node;
  known = found.nodes.filter((node) => node.name !== own && consoleOf(node))
    .sort((one, other) => (other.state === "up") - (one.state === "up"));
  const wrong = found.problems.length + found.alerts.length;
  const buried = found.queues?.buried ? `, ${number(found.queues.buried)} buried` : "";
  return show(place("health"), h("a", { href: "#/", class: gradeOf(found) },
    found.healthy ? `Healthy${buried}` : `${wrong || ""} wrong`.trim()));
}

function gradeOf({ healthy, problems, alerts }) {
  const isCritical = [...problems, ...alerts].some((one) => one.severity === "critical");
  return healthy ? "well" : isCritical ? "ill" : "warn";
}

/** Shows since when the node has not answered, and where to go on; 0: it answers. */
export function showBanner(since_ms, others) {
  const banner = place("banner");
  document.body.classList.toggle("away", since_ms > 0);
  showHealth(null);
  if (!since_ms) {
    banner.hidden = true;
    show(banner);
    return;
  }
  const name = whoami()?.node || location.host;
  const passed = duration(Math.max(1000, Math.floor((Date.now() - since_ms) / 1000) * 1000));
  const links = others.map((node) =>
    h("li", {}, h("a", { href: `${consoleOf(node)}/${location.hash}` }, node.name,
      node.name === overview?.leader ? " (it led)" : "")));
  // Only the first line is told to those who hear the page: the rest changes each second.
  show(banner,
    h("p", {}, h("b", {}, `${name} does not answer since ${clockTime(since_ms)} ${zoneName()}. `),
      h("span", { "aria-hidden": "true" }, `${passed.replace(".0", "")} by now. `),
      "It is asked again and again; what is below may be old. "),
    links.length ? h("p", {}, "Go on at ") : null,
    links.length ? h("ul", { class: "row" }, links) : null);
  banner.hidden = false;
}

/** Shows node, version, user, zone; `redraw` shows the page anew. Null: nobody is logged in. */
export function showFoot(redraw) {
  const who = whoami();
  if (!redraw || !who) return show(place("foot"));
  const zone = () => {
    setUtc(!inUtc());
    showFoot(redraw);
    redraw();
  };
  const leave = () => act(async () => {
    await logout();
    connection.dispatchEvent(new Event("loggedout"));
    location.reload();
  }, "Logged out.");
  return show(place("foot"),
    h("p", {}, `Node ${who.node}, Tidewarden ${who.version}. `,
      who.user ? ["User ", h("b", {}, who.user), ". "] : "Open to this machine, without users. "),
    h("p", { class: "row" },
      h("button", { type: "button", title: absolute(Date.now()), on: { click: zone } },
        `Times: ${zoneName()}; show ${inUtc() ? "local time" : "UTC"}`),
      who.user ? h("button", { type: "button", on: { click: leave } }, "Log out") : null));
}
