/** How long a server has said nothing, in time in which this process could have heard it. Pure: time is an argument. */

const INTERVALS_MAX = 3;
const TICKS_PER_INTERVAL = 10;

/**
 * The silence of one stream. Its owner calls `tick` every `tickMs` and `heard` at every message. A tick that comes
 * late, because the event loop was blocked or the process stopped, counts as two at most: what has arrived meanwhile
 * has not been read yet.
 */
export class SilenceDetector {
  #intervalMs: number;
  #tickedMs: number;
  #silentMs = 0;
  #heard = false;

  constructor(intervalMs: number, nowMs: number) {
    this.#intervalMs = intervalMs;
    this.#tickedMs = nowMs;
  }

  /** Between two ticks. */
  get tickMs(): number {
    return this.#intervalMs / TICKS_PER_INTERVAL;
  }

  /** The silence that is too long. */
  get mostMs(): number {
    return INTERVALS_MAX * this.#intervalMs;
  }

  /** A message came: silence counts from the next tick on. */
  heard(): void {
    this.#heard = true;
  }

  /** From now on the server speaks at least this often. The next tick is due in the new `tickMs`. */
  allow(intervalMs: number): void {
    this.#intervalMs = intervalMs;
    this.#heard = true;
  }

  /** Whether the server has been silent for three intervals. */
  tick(nowMs: number): boolean {
    const passedMs = Math.min(nowMs - this.#tickedMs, 2 * this.tickMs);
    this.#silentMs = this.#heard ? 0 : this.#silentMs + passedMs;
    this.#tickedMs = nowMs;
    this.#heard = false;
    return this.#silentMs >= this.mostMs;
  }
}
