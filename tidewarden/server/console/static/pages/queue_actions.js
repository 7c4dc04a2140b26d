/** What can be done to a queue and its tasks, each asked for in a dialog and told when done. */

import { patch, path, post, query, remove } from "../api.js";
import { act, ask, inPieces } from "../dialog.js";
import { h } from "../dom.js";
import { counted, number } from "../format.js";
import { may } from "../session.js";

const code = (text) => h("code", {}, text);
const SELECTION = [
  { name: "reason", label: "Only those whose reason begins with", hint: "Empty: any reason." },
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

/**
 * Asks which buried tasks, and deals with them in as many requests as it takes.
 *
 * `chosen` is a reason, or the ids of some tasks; neither: the dialog has fields for it. What is
 * buried after it began is left, so that tasks which fail at once are not dealt with for ever.
 */
async function deal(queue, verb, done, { chosen, question, body = () => ({}), told }) {
  const open = !chosen;
  const answer = await ask({ ...question,
    fields: [...(question.fields ?? []), ...(open ? SELECTION : [])] });
  if (!answer) return false;
  const some = open ? selected(answer)
    : chosen.ids ? { ids: chosen.ids } : { all: true, reason: chosen.reason };
  let wanted = some.count ?? some.ids?.length ?? Infinity;
  let began_ms = null;
  const piece = async () => {
    const age_ms = began_ms === null || some.ids ? 0 : Math.floor(performance.now() - began_ms);
    began_ms ??= performance.now();
    const { [done]: dealt, left = 0 } = await post(path`/v1/queues/${queue}/buried/` + verb,
      { ...body(answer), ...some, ...(some.count ? { count: wanted } : {}),
        ...(age_ms ? { age_ms } : {}) });
    wanted -= dealt;
    return { done: dealt, left: Math.min(left, wanted) };
  };
  return act(() => inPieces(piece, (all, left) => `${told(answer)}: ${number(all)}`
    + (left ? `; left: ${number(left)}.` : ".")), (text) => text);
}

const words = (chosen) => (!chosen ? "Buried tasks"
  : chosen.ids ? `${counted(chosen.ids.length, "buried task")} that you chose`
  : ["Those that were buried for ", chosen.reason ? code(chosen.reason) : "no reason"]);

/** Makes buried tasks ready; `chosen`: those of `{reason}`, or of `{ids}`. */
export const kickMany = (queue, chosen) => deal(queue, "kick", "kicked", {
  chosen,
  question: {
    title: "Make buried tasks ready?",
    text: [words(chosen), ": their attempts, losses and history start afresh, and takers of ",
      code(queue), " get them again, those buried longest first."],
    verb: "Kick",
  },
  told: () => "Made ready",
});

/** Moves buried tasks to another queue, chosen likewise. */
export const moveMany = (queue, chosen) => deal(queue, "move", "moved", {
  chosen,
  question: {
    title: "Move buried tasks?",
    text: [words(chosen), ": they leave ", code(queue), " and are ready in the other queue, under"
      + " their ids."],
    verb: "Move",
    fields: [{ name: "to", label: "To which queue", required: true }],
  },
  body: ({ to }) => ({ to }),
  told: ({ to }) => `Moved to ${to}`,
});

/** Deletes buried tasks, chosen likewise. */
export const deleteMany = (queue, chosen) => deal(queue, "delete", "deleted", {
  chosen,
  question: {
    title: "Delete buried tasks?",
    text: [words(chosen), " of ", code(queue), ": they cannot be had back."],
    verb: "Delete",
    danger: true,
    ...(chosen ? {} : { typed: queue }),
  },
  told: () => "Deleted",
});

/** Makes one buried task ready. */
export const kickOne = (queue, id) =>
  act(() => post(path`/v1/queues/${queue}/buried/kick`, { id }),
    (told) => (told.kicked ? `${id} is ready.` : `${id} was not buried any more.`));

/** Has a buried task's payload edited, and puts it again. */
export async function editTask(queue, task) {
  const answer = await ask({
    title: "Edit and put again?",
    text: [code(task.id), " of ", code(queue), " becomes ready with this payload, in one step. Its"
      + " attempts, losses and history start afresh."],
    verb: "Put again",
    fields: [{ name: "payload", label: "Payload", value: task.payload, type: "area" }],
  });
  if (!answer) return false;
  const body = { id: task.id, payload: answer.payload, buried_ms: task.buried_ms };
  return act(() => post(path`/v1/queues/${queue}/buried/kick`, body), (told) => (told.kicked
    ? `${task.id} is ready with its new payload.` : `${task.id} has been put again already.`));
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
