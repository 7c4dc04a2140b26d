/** The first page: is it healthy, what is wrong, since when, what can be done. */

import { get, getIf } from "../api.js";
import { h } from "../dom.js";
import { bytes, counted, duration, number, time } from "../format.js";
import { plot } from "../plot.js";
import { link } from "../router.js";
import { mayAll, whoami } from "../session.js";
import { consoleOf } from "../shell.js";
import { facts, table } from "../table.js";
import { figures } from "./history.js";
import { nodeActions } from "./node_actions.js";
import { STATES, TROUBLED } from "./tokens.js";

const HISTORY_EVERY_MS = 10_000;
const NEWEST = 12;

/** Makes the page. */
export function overviewPage() {
  let history = null;
  let asked_ms = 0;
  return {
    title: "Overview",
    every_ms: 2000,
    overview: true,
    async load(signal) {
      const overview = await get("/v1/overview", signal);
      if (Date.now() - asked_ms >= HISTORY_EVERY_MS) {
        history = await getIf("/v1/history", signal);
        asked_ms = Date.now();
      }
      return { overview, history };
    },
    view: ({ overview, history: found }, again) => [
      sentence(overview),
      problems(overview.problems),
      alerts(overview.alerts),
      nodesOf(overview, again),
      figuresOf(overview),
      found ? h("section", {}, h("h2", {}, "The last hour"), h("div", { class: "plots" },
        figures(found).map(plot))) : null,
      timeline(overview.timeline),
    ],
  };
}

function sentence(overview) {
  const { healthy, nodes, leader, primary, problems, alerts } = overview;
  const up = nodes.filter((node) => node.state === "up").length;
  const stores = nodes.filter((node) => node.in_sync !== null);
  const inSync = nodes.filter((node) => node.in_sync).length;
  const said = [];
  said.push(leader ? `${leader} leads in epoch ${number(overview.epoch)}` : "No node leads");
  if (primary === "embedded" || primary === "external") said.push("one store for all");
  else if (primary) said.push(`the store of ${primary} is the primary in view ${overview.view}`);
  else said.push("no store takes writes");
  if (stores.length > 1) said.push(`${inSync} of ${stores.length} stores are in sync`);
  const wrong = [...problems.map((one) => [one.what, one.severity]),
    ...alerts.map((one) => [one.summary, one.severity])];
  const grade = healthy ? "well" : wrong.every(([, word]) => severity(word) === "warn")
    && wrong.length ? "warn" : "ill";
  return h("section", { class: `sentence ${grade}`, "aria-label": "Health" },
    h("p", { class: "big" }, h("span", { class: "sign", "aria-hidden": "true" },
      healthy ? "✓" : "!"), healthy ? healthyText(overview.queues) : wrong[0]?.[0]
      ?? "Not healthy."),
    wrong.length > 1 ? h("p", { class: "more" }, h("b", {},
      `And ${counted(wrong.length - 1, "thing")} more; what can be done is below.`)) : null,
    h("p", {}, `${overview.cluster ? `${overview.cluster}: ` : ""}`
      + `${counted(nodes.length, "node")}, ${up} up; ${said.join("; ")}.`));
}

/** How many tasks are buried belongs to it, and of how many queues that is known. */
function healthyText({ queues, buried_of: known, buried }) {
  const tasks = buried ? `Healthy, but ${counted(buried, "task")} are buried.` : "Healthy.";
  return known < queues
    ? `${tasks} Buried tasks of ${number(known)} of ${counted(queues, "queue")} are counted so far.`
    : tasks;
}

function problems(found) {
  if (!found.length) return null;
  return h("section", {}, h("h2", {}, "What is wrong"), h("ul", { class: "problems" },
    found.map((one) => h("li", { class: severity(one.severity), "data-key": `p ${one.what}` },
      h("p", {}, h("span", { class: `tag ${severity(one.severity)}` }, one.severity), " ",
        h("b", {}, one.what)),
      h("p", {}, one.since_ms ? ["Since ", time(one.since_ms, true), ". "] : null,
        one.action ? [h("b", {}, "What to do: "), one.action] : null)))));
}

const severity = (word) => (["critical", "page", "error"].includes(word) ? "ill" : "warn");

function alerts(found) {
  return h("section", {}, h("h2", {}, "Alerts"),
    table("Alerts that fire", [
      { title: "Alert", cell: (one) => [h("b", {}, one.name), about(one)] },
      { title: "Severity", cell: (one) =>
        h("span", { class: `tag ${severity(one.severity)}` }, one.severity) },
      { title: "Since", cell: (one) => time(one.since_ms, true) },
      { title: "What it says", cell: (one) => one.summary },
      { title: "What to do", cell: (one) => one.action || "–" },
    ], found, { key: (one) => `${one.name} ${one.summary.replace(/\d+/g, "")}`,
      empty: "No alert fires." }));
}

function about({ queue, provider }) {
  if (queue) return [" ", h("a", { href: link(["queues", queue]) }, queue)];
  if (provider) return [" ", h("a", { href: link(["tokens", "provider", provider]) }, provider)];
  return null;
}

function nodesOf(overview, again) {
  const own = whoami()?.node;
  const isOperator = mayAll("admin") && overview.nodes.length > 1;
  return h("section", {}, h("h2", {}, "Nodes"),
    table("The nodes of the cluster", [
      { title: "Node", cell: (node) => nameOf(node, own) },
      { title: "State", cell: (node) => h("span", { class: `tag ${stateOf(node)}` },
        node.state || "unknown") },
      { title: "Role", cell: (node) => (node.name === overview.leader
        ? h("span", { class: "tag lead" }, "leader") : node.role || "–") },
      { title: "Epoch", number: true, cell: (node) => (node.epoch ? number(node.epoch) : "–") },
      { title: "Store", cell: (node) => [node.store || "–",
        node.why ? h("span", { class: "illtext" }, ` ${node.why}`) : null] },
      { title: "In sync", cell: (node) => (node.in_sync === null ? "–"
        : node.in_sync ? "yes" : h("b", { class: "illtext" }, "no")) },
      { title: "Behind", number: true, cell: (node) =>
        (node.behind_bytes == null || node.behind_bytes < 0 ? "–" : bytes(node.behind_bytes)) },
      { title: "Heard", number: true, cell: (node) => heard(node, own) },
      ...(isOperator ? [{ title: "What can be done", cell: (node) =>
        nodeActions(node, overview, again) }] : []),
    ], overview.nodes, { key: (node) => node.name }));
}

const stateOf = (node) => ({ up: "well", silent: "ill" })[node.state] ?? "warn";

function nameOf(node, own) {
  const there = consoleOf(node);
  const name = h("b", {}, node.name);
  return [
    node.name !== own && there ? h("a", { href: `${there}/${location.hash}` }, name) : name,
    node.name === own ? h("span", { class: "quiet" }, " (this one)") : null,
    h("br"), h("code", { class: "quiet" }, node.address)];
}

function heard(node, own) {
  if (node.name === own) return "–";
  return node.heard_ms === null ? "never" : `${duration(node.heard_ms)} ago`;
}

function figuresOf({ queues, tokens }) {
  const states = Object.entries(tokens).sort(
    ([one], [other]) => STATES.indexOf(one) - STATES.indexOf(other));
  const tasks = queues ? [
    ["Queues", h("a", { href: link(["queues"]) }, number(queues.queues))],
    ["Ready", number(queues.ready)],
    ["Delayed", number(queues.delayed)],
    ["Leased", number(queues.leased)],
    ["Buried", queues.buried ? h("b", { class: "illtext" }, number(queues.buried)) : "0"],
  ] : [];
  return h("section", {}, h("h2", {}, "Work"),
    h("div", { class: "cards" },
      tasks.length ? h("div", { class: "card" }, h("h3", {}, "Tasks"), facts(tasks),
        queues.counted < queues.queues ? h("p", { class: "quiet" },
          `Tasks of the ${number(queues.counted)} busiest queues.`) : null) : null,
      states.length ? h("div", { class: "card" }, h("h3", {}, "Accounts"),
        facts(states.filter(([, count]) => typeof count === "number").map(([state, count]) =>
          [state.replace("_", " "),
            h("a", { href: link(["tokens"], { state }),
              class: count && TROUBLED.includes(state) ? "illtext" : null }, number(count))])))
        : null));
}

function timeline(found) {
  const all = [...found].sort((one, other) => other.at_ms - one.at_ms);
  const lines = (some) => h("ol", { class: "timeline" }, some.map((one) =>
    h("li", {}, h("span", { class: "at" }, time(one.at_ms, true)), " ",
      h("span", { class: "tag" }, one.kind.replaceAll("_", " ")), " ", one.text)));
  return h("section", {}, h("h2", {}, "Elections and failovers"),
    all.length ? lines(all.slice(0, NEWEST)) : h("p", { class: "quiet" }, "None so far."),
    all.length > NEWEST ? h("details", {}, h("summary", {},
      `${counted(all.length - NEWEST, "older one")}`), lines(all.slice(NEWEST))) : null);
}
