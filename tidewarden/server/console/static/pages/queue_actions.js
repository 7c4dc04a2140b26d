/** What can be done to a queue and its tasks, each asked for in a dialog and told when done. */

import { patch, path, post, query, remove } from "../api.js";
import { act, ask } from "../dialog.js";
import { h } from "../dom.js";
import { counted, number } from "../format.js";
import { may } from "../session.js";

const code = (text) => h("code", {}, text);
const selection = (reason) => [
  { name: "reason", label: "Only those whose reason begins with", value: reason,
    hint: "Empty: any reason." },
  { name: "count", label: "At most how many", type: "number", min: 1, hint: "Empty: all." },
];
const selected = ({ reason, count }) => ({
  ...(reason ? { reason_prefix: reason } : {}),
  ...(count ? { count: Number(count) } : { all: true }),
});

/** Whether the user may administrate the queue. */
export const mayAdmin = (queue) => may("admin", queue);

/** Stops takes. */
export async function pause(queue) {
  const answer = await ask({
    title: "Pause the queue?",
    text: ["Takers of ", code(queue), " get nothing until it is resumed. Puts, and acks of tasks",
      " that are held, go on."],
    verb: "Pause",
    fields: [{ name: "minutes", label: "For how many minutes", type: "number", min: 0,
      hint: "Empty: until somebody resumes it." }],
  });
  if (!answer) return false;
  const ms = Math.round(Number(answer.minutes) * 60_000);
  return act(() => post(path`/v1/queues/${queue}/pause`, ms > 0 ? { ms } : {}), "Paused.");
}

/** Lets takes go on. */
export const resume = (queue) =>
  act(() => post(path`/v1/queues/${queue}/resume`, {}), "Takes go on.");

/** Changes one setting; what it may be is said by the node. */
export async function changeSetting(queue, settings) {
  const answer = await ask({
    title: "Change a setting?",
    text: ["It is in force in every shard of ", code(queue), " once this is answered."],
    verb: "Change",
    fields: [
      { name: "name", label: "Setting", options: Object.keys(settings) },
      { name: "value", label: "New value", required: true },
    ],
  });
  if (!answer?.value) return false;
  const isNumber = typeof settings[answer.name] === "number";
  const value = isNumber && answer.value !== "" ? Number(answer.value) : answer.value;
  return act(() => patch(path`/v1/queues/${queue}`, { [answer.name]: value }),
    (told) => `${answer.name} is ${told.settings?.[answer.name] ?? value}.`);
}

/** Removes tasks; the queue's name must be typed. */
export async function purge(queue, counts) {
  const states = ["all", "ready", "delayed", "leased", "buried", "waiting"];
  const answer = await ask({
    title: "Remove tasks for good?",
    text: [code(queue), ` has ${counted(counts.total ?? 0, "task")}. What is removed cannot be`,
      " had back; leases on it answer NOTHELD."],
    verb: "Remove them",
    danger: true,
    typed: queue,
    fields: [{ name: "state", label: "Which tasks", options: states, value: "all" }],
  });
  if (!answer) return false;
  const state = answer.state === "all" ? {} : { state: answer.state };
  return act(() => post(path`/v1/queues/${queue}/purge`, state),
    (told) => `Removed: ${number(told.purged)}.`);
}

/** Drops the queue; its name must be typed. */
export async function drop(queue, counts) {
  const answer = await ask({
    title: "Drop the queue?",
    text: [code(queue), ` goes with its ${counted(counts.total ?? 0, "task")}, which cannot be had`,
      " back. Whoever uses its name is told so; Q.CONFIG makes it again."],
    verb: "Drop it",
    danger: true,
    typed: queue,
  });
  return Boolean(answer) && act(() => remove(path`/v1/queues/${queue}` + query({ force: true })),
    (told) => `${queue} is dropped, with ${counted(told.dropped, "task")}.`);
}

/** Makes buried tasks ready; those of one reason, where that is given. */
export async function kickMany(queue, reason = "") {
  const answer = await ask({
    title: "Make buried tasks ready?",
    text: ["Their attempts, losses and history start afresh, and takers of ", code(queue),
      " get them again, those buried longest first."],
    verb: "Kick",
    fields: selection(reason),
  });
  if (!answer) return false;
  return act(() => post(path`/v1/queues/${queue}/buried/kick`, selected(answer)),
    (told) => `Made ready: ${number(told.kicked)}.`);
}

/** Makes one buried task ready. */
export const kickOne = (queue, id) =>
  act(() => post(path`/v1/queues/${queue}/buried/kick`, { id }),
    (told) => (told.kicked ? `${id} is ready.` : `${id} was not buried any more.`));

/** Moves buried tasks to another queue; those of one reason, where that is given. */
export async function moveMany(queue, reason = "") {
  const answer = await ask({
    title: "Move buried tasks?",
    text: ["They leave ", code(queue), " and are ready in the other queue, under their ids."],
    verb: "Move",
    fields: [{ name: "to", label: "To which queue", required: true },
      ...selection(reason)],
  });
  if (!answer?.to) return false;
  return act(
    () => post(path`/v1/queues/${queue}/buried/move`, { to: answer.to, ...selected(answer) }),
    (told) => `Moved to ${answer.to}: ${number(told.moved)}.`);
}

/** Deletes one task, whoever holds it. */
export async function deleteTask(queue, id, state) {
  const held = state === "leased";
  const answer = await ask({
    title: "Delete the task?",
    text: [code(id), " of ", code(queue), " cannot be had back.",
      held ? " Somebody holds it: its lease answers NOTHELD from then on." : ""],
    verb: "Delete",
    danger: true,
  });
  if (!answer) return false;
  return act(
    () => remove(path`/v1/queues/${queue}/tasks/${id}` + query({ force: held ? "true" : "" })),
    `${id} is deleted.`);
}
