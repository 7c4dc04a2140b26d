/** Repeats something while the page is visible: one run at a time, the pause between two runs. */

export class Poll {
  /**
   * @param {number} every_ms the pause
   * @param {(signal: AbortSignal) => Promise<void>} step must not throw
   */
  constructor(every_ms, step) {
    this.every_ms = every_ms;
    this.step = step;
    this.stopped = new AbortController();
    this.timer = 0;
    this.running = false;
    this.again = false;
    document.addEventListener("visibilitychange", () => this.now(), {
      signal: this.stopped.signal,
    });
    this.now();
  }

  /** Runs at once, or once more after the run under way, and goes on from there; not if hidden. */
  async now() {
    clearTimeout(this.timer);
    if (document.hidden || this.stopped.signal.aborted) return;
    this.again = this.running;
    if (this.running) return;
    this.running = true;
    try {
      await this.step(this.stopped.signal);
    } finally {
      this.running = false;
    }
    if (!document.hidden && !this.stopped.signal.aborted) {
      this.timer = setTimeout(() => this.now(), this.again ? 0 : this.every_ms);
    }
  }

  /** Ends it; a request under way is broken off. */
  stop() {
    clearTimeout(this.timer);
    this.stopped.abort();
  }
}
