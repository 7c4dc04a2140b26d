/** A line of fields that select what a list shows; what they say stands in the address. */

import { h } from "../dom.js";

/**
 * Makes the line.
 * @param {{name: string, label: string, value: string, options?: (string|[string, string])[]}[]}
 *   fields those with options are selections, the others texts
 * @param {(values: Object<string, string>) => void} change is told what was changed
 * @param {any} rest what stands behind them
 */
export function toolbar(fields, change, rest = null) {
  const elements = fields.map(({ name, label, value, options }) => {
    const id = `tool-${name}`;
    const on = { change: (event) => change({ [name]: event.target.value.trim() }) };
    const input = options
      ? h("select", { id, on, "data-value": value }, options.map((one) => {
        const [key, text] = Array.isArray(one) ? one : [one, one];
        return h("option", { value: key, selected: key === value }, text);
      }))
      : h("input", { id, type: "search", value, "data-value": value, on, autocomplete: "off",
        spellcheck: "false" });
    return h("p", { class: "field" }, h("label", { for: id }, label), input);
  });
  return h("div", { class: "toolbar", role: "search", "data-key": "toolbar" }, elements, rest);
}
