/** Starts the console: asks who is there, shows the page of the address, and keeps it fresh. */

import { Away, Refused, connection, get } from "./api.js";
import { toldOf } from "./dialog.js";
import { h, show } from "./dom.js";
import { ageTimes, learnClock, now, time } from "./format.js";
import { loginPage } from "./login.js";
import { pageOf } from "./pages.js";
import { Poll } from "./poll.js";
import { here } from "./router.js";
import { forget, learn, whoami } from "./session.js";
import { nodes, showBanner, showFoot, showHealth, showNav } from "./shell.js";

const HEALTH_MS = 5000;
const main = document.getElementById("main");

let page = null;
let poll = null;
let health = null;
let shownWay = null;

/** Leaves a page, and what it asks for. */
function leave() {
  poll?.stop();
  page?.leave?.();
  poll = page = null;
}

/** Shows the page of the address; the same page with other parameters stays until it is there. */
function enter() {
  leave();
  if (!whoami()) return showLogin("");
  const route = here();
  page = pageOf(route);
  document.title = `${page.title} · Tidewarden`;
  showNav(route.names[0] ?? "");
  const way = route.names.join("/");
  if (way !== shownWay) {
    show(main, h("h1", { tabindex: "-1" }, page.title), h("p", { class: "quiet" }, "Asking …"));
    main.firstChild.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  shownWay = way;
  const shown = page;
  poll = new Poll(page.every_ms, (signal) => refresh(shown, signal));
}

/** Asks for what the page shows, and shows it; what was shown stays while the node is silent. */
async function refresh(shown, signal) {
  try {
    const found = await shown.load(signal);
    if (page !== shown) return;
    if (shown.overview) seen(found.overview);
    shown.last = { found, at_ms: now() };
    view(shown, shown.view(found, again));
  } catch (error) {
    if (page !== shown || error.name === "AbortError" || error instanceof Away) return;
    if (!(error instanceof Refused)) console.error(error);
    failed(shown, error);
  }
}

/** Shows an error: above what the page had, if it may pass, for the store is away at times. */
function failed(shown, error) {
  const wrong = h("p", { class: "note wrong", role: "alert" }, toldOf(error));
  if (error.status < 500 || !shown.last) return view(shown, [wrong, shown.without?.(error)]);
  const { found, at_ms } = shown.last;
  return view(shown, [wrong, h("p", { class: "quiet" }, "What is below is as of ",
    time(at_ms, true), "."), shown.view(found, again)]);
}

function view(shown, children) {
  show(main, h("h1", { tabindex: "-1" }, shown.title), children);
}

/** Asks at once: something was done that the page should show. */
function again() {
  poll?.now();
}

function seen(overview) {
  learnClock(overview.at_ms);
  showHealth(overview);
  document.title = `${overview.healthy ? "" : "(!) "}${page?.title ?? ""} · Tidewarden`;
}

/** The head says how the cluster is on every page; the overview asks for that by itself. */
async function lookAfter(signal) {
  if (page?.overview) return;
  try {
    seen(await get("/v1/overview", signal));
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Away) return;
    if (!(error instanceof Refused)) console.error(error);
  }
}

function showLogin(reason) {
  leave();
  shownWay = null;
  health?.stop();
  health = null;
  forget();
  showNav(null);
  showFoot(null);
  document.title = "Log in · Tidewarden";
  show(main, loginPage(reason, begin));
  main.querySelector("input")?.focus();
}

function begin() {
  showFoot(enter);
  health ??= new Poll(HEALTH_MS, lookAfter);
  enter();
}

async function start() {
  try {
    await learn();
    begin();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) return showLogin("");
    show(main, h("h1", {}, "This node does not answer"),
      h("p", {}, "It is asked again in two seconds. ", toldOf(error)));
    setTimeout(start, 2000);
  }
}

connection.addEventListener("away", () => showBanner(connection.since_ms, nodes()));
connection.addEventListener("back", () => showBanner(0, []));
connection.addEventListener("loggedout", () => {
  if (whoami() && !whoami().open) showLogin("Your login has ended.");
});
addEventListener("hashchange", () => whoami() && enter());
setInterval(() => {
  if (document.hidden) return;
  ageTimes();
  if (connection.since_ms) showBanner(connection.since_ms, nodes());
}, 1000);
start();
