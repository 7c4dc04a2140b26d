/** The buried tasks of a queue: why they were buried, those of a page, and what can be done. */

import { tell } from "../dialog.js";
import { h } from "../dom.js";
import { counted, number, time } from "../format.js";
import { link } from "../router.js";
import { table } from "../table.js";
import * as actions from "./queue_actions.js";
import { historyOf } from "./task.js";

/** Why tasks are buried, with what can be done with all of one reason. */
export function reasonSection(queue, found, again) {
  const button = (text, work, row) => h("button", { type: "button",
    class: work === actions.deleteMany ? "danger" : null, "aria-label": `${text} ${row.reason}`,
    on: { click: async () => (await work(queue, { reason: row.reason })) && again() } }, text);
  return h("section", { "data-key": "reasons" }, h("h2", {}, "Why tasks are buried"),
    table("Reasons", [
      { title: "Tasks", number: true, cell: (row) => number(row.tasks) },
      { title: "Reason", cell: (row) => (row.reason ? h("a", { href: link(["queues", queue],
        { state: "buried", find: row.reason, in: "reason" }) }, row.reason) : "–") },
      { title: "First", cell: (row) => time(row.first_ms) },
      { title: "Last", cell: (row) => time(row.last_ms) },
      { title: "For example", cell: (row) =>
        h("a", { href: link(["queues", queue, "tasks", row.example]) }, row.example) },
      { title: "All of these", cell: (row) => (actions.mayAdmin(queue)
        ? h("span", { class: "row" },
          button("Kick …", actions.kickMany, row),
          button("Move …", actions.moveMany, row),
          button("Delete …", actions.deleteMany, row)) : null) },
    ], found.reasons, { key: (row) => row.reason }),
    found.others ? h("p", { class: "quiet" },
      `${counted(found.others, "task")} of further reasons.`) : null,
    found.more ? h("p", { class: "quiet" },
      `The ${number(found.tasks)} tasks that were buried first.`) : null);
}

/** What is ticked stands in the page itself, whose rows stay while it is asked anew. */
const boxes = (state) => [...document.querySelectorAll(`input[data-task]${state}`)];

function forChosen(queue, again) {
  const all = (text, on) => h("button", { type: "button", on: { click: () => {
    for (const one of boxes("")) one.checked = on;
  } } }, text);
  const button = (text, work) => h("button", { type: "button",
    class: work === actions.deleteMany ? "danger" : null,
    on: { click: async () => {
      const ids = boxes(":checked").map((one) => one.dataset.task);
      if (!ids.length) return tell("Choose some tasks first.");
      return (await work(queue, { ids })) && again();
    } } }, text);
  return h("div", { class: "actions", role: "group", "aria-label": "The chosen tasks" },
    all("Choose all shown", true), all("Choose none", false),
    button("Kick chosen …", actions.kickMany),
    button("Move chosen …", actions.moveMany),
    button("Delete chosen …", actions.deleteMany));
}

/** The buried tasks of a page. */
export function buriedTable(queue, tasks, again) {
  const isAdmin = actions.mayAdmin(queue);
  const button = (text, work) => h("button", { type: "button",
    on: { click: async () => (await work()) && again() } }, text);
  return [
    isAdmin && tasks.length ? forChosen(queue, again) : null,
    table("Buried tasks", [
      { title: "Task", cell: (task) => h("span", { class: "row" },
        isAdmin ? h("input", { type: "checkbox", "data-task": task.id,
          "aria-label": `Choose ${task.id}` }) : null,
        h("a", { href: link(["queues", queue, "tasks", task.id]) }, task.id)) },
      { title: "Buried", cell: (task) => time(task.buried_ms) },
      { title: "Reason", cell: (task) => task.reason || "–" },
      { title: "Attempts", number: true, cell: (task) => number(task.attempts) },
      { title: "Losses", number: true, cell: (task) => number(task.losses) },
      { title: "History", cell: (task) => (task.history?.length
        ? h("details", {}, h("summary", {}, counted(task.history.length, "bad end")),
          historyOf(task.history)) : "–") },
      { title: "What can be done", cell: (task) => h("span", { class: "row" },
        isAdmin ? button("Kick", () => actions.kickOne(queue, task.id)) : null,
        button("Delete …", () => actions.deleteTask(queue, task.id, "buried"))) },
    ], tasks, { key: (task) => task.id }),
  ];
}
