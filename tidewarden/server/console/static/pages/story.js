/** The story of an account or of a provider, as `T.WHY` tells it: what happened, and what helps. */

import { h } from "../dom.js";
import { time } from "../format.js";
import { table } from "../table.js";
import { markOf, tagOf } from "./tokens.js";

/** Makes the elements of a story, what can be done first. */
export function storyOf(story) {
  const grade = { "": "warn", warn: "warn", well: "well", ill: "ill" }[markOf(story.state)];
  return [
    h("section", { class: `sentence ${grade}`, "aria-label": "How it is" },
      h("p", {}, tagOf(story.state), " ", story.summary)),
    h("section", {}, h("h2", {}, "What can be done"),
      story.advice?.length ? h("ul", { class: "plain" },
        story.advice.map((text) => h("li", {}, text)))
        : h("p", { class: "quiet" }, "Nothing need be done."),
      story.next ? h("p", {}, h("b", {}, "If nobody does anything: "), story.next.text) : null),
    h("section", {}, h("h2", {}, "Why"),
      h("ul", { class: "plain" }, (story.concluded ?? []).map((one) => h("li", {}, one.text)))),
    h("section", {}, h("h2", {}, "What was answered"),
      table("The last answers", [
        { title: "When", cell: (one) => time(one.at_ms, true) },
        { title: "Outcome", cell: (one) => one.outcome },
        { title: "Answer", cell: (one) => one.brief },
      ], [...(story.asked ?? [])].reverse(), { empty: "No answer is on record." })),
  ];
}
