/** Notices a server that says nothing for three of its heartbeat intervals. */

import { SilenceDetector } from "./silence-detector.js";

/** Watches one stream at a time. */
export class Watchdog {
  #timer: NodeJS.Timeout | undefined;
  #silence = new SilenceDetector(0, 0);
  #onSilent: (silentMs: number) => void = () => undefined;

  /** A stream begins; `onSilent` is called once when nothing was heard for too long. */
  start(intervalMs: number, onSilent: (silentMs: number) => void): void {
    this.#onSilent = onSilent;
    this.#silence = new SilenceDetector(intervalMs, performance.now());
    this.#wait();
  }

  /** A message came. */
  heard(): void {
    this.#silence.heard();
  }

  /** From now on the server speaks at least this often. */
  setInterval(intervalMs: number): void {
    this.#silence.allow(intervalMs);
    this.#wait();
  }

  stop(): void {
    clearTimeout(this.#timer);
  }

  #wait(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      if (this.#silence.tick(performance.now())) {
        this.#onSilent(this.#silence.mostMs);
      } else {
        this.#wait();
      }
    }, this.#silence.tickMs);
  }
}
