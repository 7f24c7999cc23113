/** Notices a server that says nothing for three of its heartbeat intervals. */

import { Silence } from "./silence.js";

/** Watches one stream at a time. */
export class Watchdog {
  #timer: NodeJS.Timeout | undefined;
  #silence = new Silence(0, 0);
  #bark: (silentMs: number) => void = () => undefined;

  /** A stream begins; `bark` is called once when nothing was heard for too long. */
  start(intervalMs: number, bark: (silentMs: number) => void): void {
    this.#bark = bark;
    this.#silence = new Silence(intervalMs, performance.now());
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
        this.#bark(this.#silence.mostMs);
      } else {
        this.#wait();
      }
    }, this.#silence.tickMs);
  }
}
