/** One account: how it is and why, what can be done, its history; never its tokens. */

import { get, path, post, remove } from "../api.js";
import { act, ask } from "../dialog.js";
import { h } from "../dom.js";
import { number, time } from "../format.js";
import { go, link } from "../router.js";
import { facts } from "../table.js";
import { storyOf } from "./story.js";
import { mayWrite } from "./tokens.js";

const REFRESH = {
  queued: "A refresh is queued.",
  leased: "A refresh is under way already.",
  recent: "It was asked for a moment ago, and is done when five seconds are over.",
  moved: "It has another generation by now.",
};

/** Makes the page of an account, named `provider/account`. */
export function accountPage(account) {
  const [provider, ...rest] = account.split("/");
  const name = rest.join("/");
  return {
    title: account,
    every_ms: 3000,
    async load(signal) {
      const [peek, story] = await Promise.all([
        get(path`/v1/accounts/${provider}/${name}`, signal),
        get(path`/v1/accounts/${provider}/${name}/why`, signal),
      ]);
      return { peek, story };
    },
    view: ({ peek, story }, again) => [
      h("p", {}, "An account of ", h("a", { href: link(["tokens", "provider", provider]) },
        provider)),
      mayWrite(account) ? buttons(provider, name, again) : null,
      storyOf(story),
      h("section", {}, h("h2", {}, "Figures"), h("div", { class: "cards" },
        h("div", { class: "card" }, figures(peek)), h("div", { class: "card" }, times(peek)))),
    ],
    without: () => h("p", {}, h("a", { href: link(["tokens"]) }, "To all tokens")),
  };
}

function buttons(provider, name, again) {
  const refresh = async () => {
    if (await act(() => post(path`/v1/tokens/${provider}/${name}/refresh`),
      (told) => REFRESH[told.refresh] ?? told.refresh)) again();
  };
  const forget = async () => {
    const account = `${provider}/${name}`;
    const answer = await ask({
      title: "Forget the account?",
      text: ["Its tokens are deleted here and cannot be had back; readers get NOTFOUND."],
      verb: "Forget it",
      danger: true,
      typed: account,
    });
    if (answer && await act(() => remove(path`/v1/tokens/${provider}/${name}`),
      `${account} is forgotten.`)) go(["tokens"]);
  };
  return h("div", { class: "actions", role: "group", "aria-label": "Actions" },
    h("button", { type: "button", class: "primary", on: { click: refresh } }, "Refresh now"),
    h("button", { type: "button", class: "danger", on: { click: forget } }, "Forget …"));
}

function figures(peek) {
  return facts([
    ["Generation", number(peek.generation)],
    ["Grant", number(peek.grant)],
    ["Tries since it failed", number(peek.tries)],
    ["Scope", peek.scope],
    ["Token type", peek.token_type],
    ["Has an access token", peek.access_token ? "yes" : "no"],
    ["Error", peek.error],
  ]);
}

function times(peek) {
  const at = (ms) => (ms > 0 ? time(ms, true) : null);
  return facts([
    ["Stored", at(peek.stored_ms)],
    ["Falls due", at(peek.due_ms)],
    ["Next try", at(peek.next_ms)],
    ["Token ends", at(peek.expires_at_ms)],
    ["Consent ends", at(peek.consent_expires_ms)],
  ]);
}
