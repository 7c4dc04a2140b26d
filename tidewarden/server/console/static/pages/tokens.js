/** Providers and accounts: who is in trouble, why, what can be done; what falls due; a search. */

import { get, getIf, path, query as queryOf } from "../api.js";
import { h } from "../dom.js";
import { number, time } from "../format.js";
import { plot } from "../plot.js";
import { change, link } from "../router.js";
import { may, whoami } from "../session.js";
import { table } from "../table.js";
import { toolbar } from "./toolbar.js";

/** The states of accounts, those that need somebody first. */
export const STATES = ["dead", "lost_rotation", "stopped", "failing", "late", "expiring", "fresh"];
/** Those of them that do. */
export const TROUBLED = STATES.slice(0, 5);
const EACH = 20;
const SCAN_PAGE = 500;
const SCAN_MAX = 20_000;
const FOUND_MAX = 200;
const FORECAST_EVERY_MS = 30_000;
const SEARCH_EVERY_MS = 15_000;

/** How a state is marked, by the colour that goes with its word. */
export const markOf = (state) =>
  ["dead", "lost_rotation", "stopped", "quarantined", "refusing", "blocked"].includes(state) ? "ill"
  : ["fresh", "answers"].includes(state) ? "well"
  : ["expiring", "unknown"].includes(state) ? "" : "warn";

/** The tag with a state's name. */
export const tagOf = (state) =>
  h("span", { class: `tag ${markOf(state)}` }, state.replaceAll("_", " "));

/** The link to an account's page. */
export const accountLink = (account) =>
  h("a", { href: link(["tokens", "account", account]) }, account);

/** Makes the page; what is searched for stands in the address. */
export function tokensPage(query) {
  const wanted = { provider: query.get("provider") ?? "", state: query.get("state") ?? "",
    find: query.get("find") ?? "" };
  const searching = Boolean(wanted.provider || wanted.state || wanted.find);
  let [forecast, forecast_ms, result, result_ms] = [null, 0, null, 0];
  return {
    title: "Tokens",
    every_ms: 4000,
    async load(signal) {
      const { providers } = await get("/v1/providers", signal);
      if (Date.now() - forecast_ms >= FORECAST_EVERY_MS) {
        forecast = await getIf("/v1/forecast", signal);
        forecast_ms = Date.now();
      }
      // What took many pages is not looked for again and again.
      const isCheap = !result || result.seen <= SCAN_PAGE;
      if (searching && isCheap && Date.now() - result_ms >= SEARCH_EVERY_MS) {
        result = await search(wanted, signal);
        result_ms = Date.now();
      }
      const troubled = searching ? [] : await troubledOf(providers, signal);
      return { providers, troubled, forecast, result };
    },
    view: ({ providers, troubled, forecast: due, result: hits }) => [
      searchFields(wanted, providers),
      hits ? found(hits) : null,
      searching ? null : troubles(troubled, providers),
      standing(providers),
      due ? forecastOf(due) : null,
    ],
    without: () => (whoami()?.open ? h("p", {}, "No users are configured here, and tokens are for",
      " users alone: add ", h("code", {}, "[[users]]"), " to the configuration.") : null),
  };
}

async function troubledOf(providers, signal) {
  const states = TROUBLED.filter((state) => providers.some((one) => one[state]));
  const pages = await Promise.all(states.map((state) =>
    getIf(`/v1/tokens${queryOf({ state, count: EACH })}`, signal)));
  return states.map((state, index) => ({ state, accounts: pages[index]?.accounts ?? [] }));
}

/** Looks through accounts page by page, for there is no index of parts of their names. */
async function search({ provider, state, find }, signal) {
  const found = new Map();
  if (find.includes("/")) {
    const [name, ...rest] = find.split("/");
    const one = await getIf(path`/v1/accounts/${name}/${rest.join("/")}`, signal);
    if (one) found.set(one.account, one);
  }
  let [after, seen] = ["", 0];
  do {
    const page = await get(
      `/v1/tokens${queryOf({ provider, state, count: SCAN_PAGE, after })}`, signal);
    for (const one of page.accounts) if (one.account.includes(find)) found.set(one.account, one);
    seen += page.accounts.length;
    after = page.after;
  } while (after && seen < SCAN_MAX && found.size < FOUND_MAX);
  const accounts = [...found.values()].sort((one, other) => (one.account < other.account ? -1 : 1));
  return { accounts, seen, whole: !after };
}

function searchFields(wanted, providers) {
  return toolbar([
    { name: "find", label: "Account’s name has", value: wanted.find },
    { name: "provider", label: "Provider", value: wanted.provider,
      options: [["", "all"], ...providers.map((one) => one.provider)] },
    { name: "state", label: "State", value: wanted.state,
      options: [["", "all"], ...STATES.map((one) => [one, one.replaceAll("_", " ")])] },
  ], change, wanted.find || wanted.provider || wanted.state
    ? h("a", { class: "button", href: link(["tokens"]) }, "Show all") : null);
}

function found({ accounts, seen, whole }) {
  const shown = accounts.slice(0, FOUND_MAX);
  return h("section", {}, h("h2", {}, "Found"),
    h("p", { class: "quiet" }, `${number(accounts.length)} of ${number(seen)} accounts looked at`,
      whole ? "." : "; there are more: say more of the name, or choose a provider or a state."),
    accountTable("Accounts found", shown));
}

/** The table of accounts. */
export function accountTable(caption, accounts) {
  return table(caption, [
    { title: "Account", cell: (one) => accountLink(one.account) },
    { title: "State", cell: (one) => tagOf(one.state) },
    { title: "Since", cell: (one) => time(one.since_ms) },
    { title: "Why", cell: (one) => [one.error ? h("b", {}, one.error, " ") : null,
      one.message || (one.error ? "" : "–")] },
    { title: "Next try", cell: (one) => time(one.next_ms) },
    { title: "Token ends", cell: (one) => time(one.expires_at_ms) },
    { title: "What to do", cell: (one) => one.advice || "–" },
  ], accounts, { key: (one) => one.account, empty: "No account." });
}

function standing(providers) {
  const count = (state) => (row) => (row[state]
    ? h("a", { class: markOf(state) === "ill" ? "illtext" : null,
      href: link(["tokens"], { provider: row.provider, state }) }, number(row[state])) : "0");
  return h("section", {}, h("h2", {}, "Providers"), table("Providers", [
    { title: "Provider", cell: (row) =>
      h("a", { href: link(["tokens", "provider", row.provider]) }, row.provider) },
    { title: "Stands", cell: (row) => tagOf(stateOf(row)) },
    { title: "Accounts", number: true, cell: (row) => number(row.total) },
    ...[...STATES].reverse().map((state) =>
      ({ title: state.replaceAll("_", " "), number: true, cell: count(state) })),
    { title: "Consents end in 7 days", number: true, cell: (row) => number(row.consents_7d) },
    { title: "Last good refresh", cell: (row) => time(row.well_ms) },
  ], providers, { key: (row) => row.provider, mark: (row) => markOf(stateOf(row)),
    empty: "No provider is configured, or none that you may see." }));
}

/** How a provider stands, in one word. */
export function stateOf(row) {
  if (row.quarantined_since_ms > 0) return "quarantined";
  if (row.state !== "answers") return row.state;
  return row.held_until_ms > Date.now() ? "held" : row.state;
}

function troubles(troubled, providers) {
  const told = providers.filter((one) => one.advice || one.message);
  return h("section", {}, h("h2", {}, "What is wrong"),
    told.length ? h("ul", { class: "problems" }, told.map((one) =>
      h("li", { class: markOf(stateOf(one)), "data-key": one.provider },
        h("p", {}, tagOf(stateOf(one)), " ",
          h("a", { href: link(["tokens", "provider", one.provider]) }, one.provider),
          one.since_ms ? [" since ", time(one.since_ms, true)] : null),
        h("p", {}, one.error ? h("b", {}, one.error, " ") : null, one.message),
        one.advice ? h("p", {}, h("b", {}, "What to do: "), one.advice) : null))) : null,
    troubled.map(({ state, accounts }) => [
      h("h3", { "data-key": `head ${state}` }, state.replaceAll("_", " "), " ",
        h("a", { href: link(["tokens"], { state }) },
          `(${number(providers.reduce((sum, one) => sum + (one[state] ?? 0), 0))} in all)`)),
      accountTable(`Accounts that are ${state.replaceAll("_", " ")}`, accounts),
    ]),
    told.length || troubled.length ? null
      : h("p", { class: "quiet" }, "No account is late, failing or given up."));
}

function forecastOf({ step_ms, from_ms, providers, left_out: left }) {
  const series = Object.entries(providers).map(([label, values]) => ({ label, values }));
  if (!series.length) return null;
  const greatest = [...series].sort((one, other) => sum(other.values) - sum(one.values))
    .slice(0, 6);
  return h("section", {}, h("h2", {}, "What falls due"),
    plot({ title: `Refreshes due, counted by ${step_ms / 60_000} min`, from_ms, step_ms,
      series: greatest, bars: true }),
    left || series.length > 6 ? h("p", { class: "quiet" },
      `The greatest of ${number(series.length + (left ?? 0))} providers.`) : null);
}

const sum = (values) => values.reduce((all, one) => all + (one ?? 0), 0);

/** Whether the user may have an account refreshed, or deleted. */
export const mayWrite = (account) => may("token:write", account);
