/** Tables that become lists of cards on a phone, where a cell is shown with its column's name. */

import { h } from "./dom.js";

/**
 * Makes a table.
 * @param {string} caption what it lists, for those who hear it
 * @param {{title: string, cell: (row: any) => any, number?: boolean}[]} columns
 * @param {any[]} rows
 * @param {{key?: (row: any) => string, empty?: any, mark?: (row: any) => string}} options `key`:
 *   what a row is about, so that it stays the same element; `mark`: a class of the row
 */
export function table(caption, columns, rows, { key, empty = "None.", mark } = {}) {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  const head = columns.map((column) =>
    h("th", { role: "columnheader", scope: "col", class: column.number ? "number" : null },
      column.title),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      { role: "row", "data-key": key?.(row), class: mark?.(row) || null },
      columns.map((column, index) =>
        h(
          index ? "td" : "th",
          {
            role: index ? "cell" : "rowheader",
            scope: index ? null : "row",
            class: column.number ? "number" : null,
            "data-title": column.title,
          },
          // One child: what a cell holds stays together beside its title.
          h("span", { class: "cell" }, column.cell(row)),
        ),
      ),
    ),
  );
  return h(
    "div",
    // Where it is wider than the page, it is scrolled by keys, too.
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      // Said outright: as cards, its parts are no table to a browser.
      { role: "table" },
      h("caption", { class: "unseen" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
      h("tbody", { role: "rowgroup" }, body),
    ),
  );
}

/** Names and their values: `facts([["State", "ready"], …])`; without a value a name is left out. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs
      .filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}
