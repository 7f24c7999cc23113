/** Notices a server that says nothing: for three of its heartbeat intervals. */

const SILENT_INTERVALS = 3;

/** Watches one stream at a time. */
export class Watchdog {
  #timer: NodeJS.Timeout | undefined;
  #intervalMs = 0;
  #heardMs = 0;
  #bark: (silentMs: number) => void = () => undefined;

  /** A stream begins; `bark` is called once when nothing was heard for too long. */
  start(intervalMs: number, bark: (silentMs: number) => void): void {
    this.#bark = bark;
    this.heard();
    this.setInterval(intervalMs);
  }

  /** A message came. */
  heard(): void {
    this.#heardMs = performance.now();
  }

  /** From now on the server speaks at least this often. */
  setInterval(intervalMs: number): void {
    this.#intervalMs = intervalMs;
    this.#wait(this.#heardMs + SILENT_INTERVALS * intervalMs);
  }

  stop(): void {
    clearTimeout(this.#timer);
  }

  #wait(dueMs: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#look(dueMs);
    }, dueMs - performance.now());
  }

  #look(dueMs: number): void {
    const nowMs = performance.now();
    const silentMs = SILENT_INTERVALS * this.#intervalMs;
    if (nowMs < this.#heardMs + silentMs) {
      this.#wait(this.#heardMs + silentMs);
    } else if (nowMs - dueMs > this.#intervalMs) {
      // This process was stopped, not the server: what arrived meanwhile has not been read yet.
      this.#wait(nowMs + this.#intervalMs);
    } else {
      this.#bark(silentMs);
    }
  }
}
