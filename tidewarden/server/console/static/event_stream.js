/**
 * Follows the node's stream of events while the page is visible, and resumes after a pause.
 *
 * By fetch and not by EventSource, which tells neither why it was refused nor kinds it has not been
 * told of.
 */

import { Refused, open, query } from "./api.js";
import { toldOf } from "./dialog.js";

const AGAIN_MS = 2000;

export class EventStream {
  /**
   * @param {Object<string, string>} wanted parameters of `/v1/events`: `types`, `provider`
   * @param {string} after the id of the event after which it begins
   * @param {(event: {id: string, type: string, data: any}) => void} take
   */
  constructor(wanted, after, take) {
    this.wanted = wanted;
    this.after = after;
    this.take = take;
    this.state = "connecting";
    this.stopped = new AbortController();
    document.addEventListener("visibilitychange", () => this.#visible(), {
      signal: this.stopped.signal,
    });
    this.#follow();
  }

  /** Ends it. */
  stop() {
    this.stopped.abort();
    this.reading?.abort();
  }

  #visible() {
    if (document.hidden) this.reading?.abort();
    else if (!this.reading) this.#follow();
  }

  async #follow() {
    while (!document.hidden && !this.stopped.signal.aborted) {
      this.reading = new AbortController();
      try {
        await this.#read(this.reading.signal);
        this.state = "connecting";
      } catch (error) {
        this.state = error.name === "AbortError" ? "stopped" : toldOf(error);
        if (error instanceof Refused && error.status < 500) break;
      }
      if (this.stopped.signal.aborted || document.hidden) break;
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
    this.reading = null;
  }

  async #read(signal) {
    const response = await open("GET", `/v1/events${query(this.wanted)}`, {
      signal,
      headers: { Accept: "text/event-stream", "Last-Event-ID": this.after },
    });
    this.state = "live";
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this.#event(block);
    }
  }

  #event(block) {
    const fields = { event: "message", data: "" };
    for (const line of block.split("\n")) {
      const [name, ...value] = line.split(": ");
      if (name) fields[name.replace(/:$/, "")] = value.join(": ");
    }
    if (fields.id) this.after = fields.id;
    if (!fields.data) return;
    this.take({ id: fields.id ?? "", type: fields.event, data: JSON.parse(fields.data) });
  }
}
