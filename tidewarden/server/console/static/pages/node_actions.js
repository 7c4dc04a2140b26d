/** What an operator can do to a node: have it lead, have its store be the primary. */

import { post } from "../api.js";
import { act, ask } from "../dialog.js";
import { h } from "../dom.js";

const ACTIONS = [
  {
    label: "Make leader …",
    title: (name) => `Make ${name} the leader?`,
    text: "It sweeps and ticks from then on. Requests go on meanwhile; no election is held.",
    where: "/v1/cluster/transfer",
    done: (told) => `${told.leader} leads.`,
    fits: (node, { leader }) => node.role === "follower" && node.name !== leader,
  },
  {
    label: "Make primary …",
    title: (name) => `Make the store of ${name} the primary?`,
    text: "Writes wait for about a second until it has everything, and nothing is lost.",
    where: "/v1/cluster/switchover",
    done: (told) => `The store of ${told.primary} is the primary.`,
    fits: (node, { primary }) => node.in_sync === true && node.name !== primary,
  },
];

/** The buttons of a node's line; none while it is silent. */
export function nodeActions(node, overview, again) {
  const fitting = ACTIONS.filter((one) => node.state === "up" && one.fits(node, overview));
  if (!fitting.length) return "–";
  const doing = ({ title, text, label, where, done }) => async () => {
    const answer = await ask({ title: title(node.name), text, verb: label.replace(" …", "") });
    if (answer && await act(() => post(where, { node: node.name }), done)) again();
  };
  return h("span", { class: "row" }, fitting.map((one) => h("button", { type: "button",
    "aria-label": `${one.label} ${node.name}`, on: { click: doing(one) } }, one.label)));
}
