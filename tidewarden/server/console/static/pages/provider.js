/** One provider: how it stands with us, why, and what steers it. */

import { get, path, post } from "../api.js";
import { act, ask } from "../dialog.js";
import { h } from "../dom.js";
import { link } from "../router.js";
import { may } from "../session.js";
import { storyOf } from "./story.js";

const ACTIONS = [
  { verb: "release", label: "Release …", title: "Release the provider?",
    text: "Whatever holds its accounts back ends: quarantine, hold, rate. Failing accounts are"
      + " tried again; after a quarantine, the next refusal of an account gives it up." },
  { verb: "probe", label: "Probe …", title: "Probe the provider?",
    text: "One account is refreshed at once, in spite of a hold or a time that it named." },
  { verb: "quarantine", label: "Quarantine …", title: "Quarantine the provider?", danger: true,
    text: "No refusal counts, and no account is given up, until somebody releases it." },
];

/** Makes the page of a provider. */
export function providerPage(provider) {
  return {
    title: provider,
    every_ms: 3000,
    load: (signal) => get(path`/v1/providers/${provider}/why`, signal),
    view: (story, again) => [
      h("p", {}, "A provider. ", h("a", { href: link(["tokens"], { provider }) }, "Its accounts")),
      may("token:admin", provider) || may("token:admin", `${provider}/`)
        ? buttons(provider, again) : null,
      storyOf(story),
    ],
    without: () => h("p", {}, h("a", { href: link(["tokens"]) }, "To all tokens")),
  };
}

function buttons(provider, again) {
  const doing = ({ verb, title, text, danger }) => async () => {
    const answer = await ask({ title, text, verb: verb[0].toUpperCase() + verb.slice(1), danger });
    if (answer && await act(() => post(path`/v1/providers/${provider}/${verb}`),
      (story) => story.summary ?? "Done.")) again();
  };
  return h("div", { class: "actions", role: "group", "aria-label": "Actions" },
    ACTIONS.map((one) => h("button", { type: "button", class: one.danger ? "danger" : null,
      on: { click: doing(one) } }, one.label)));
}
