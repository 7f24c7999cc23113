/**
 * The credit window of a session: how much the server may still send, and when to grant more.
 *
 * Pure bookkeeping in balances, which stay small however long a session lives. Invariant: what waits in the client and
 * what the server may still send are together never more than the window.
 */

import { ProtocolError } from "./errors.js";

/** Permission for more: events and bytes. */
export interface Grant {
  readonly events: number;
  readonly bytes: number;
}

/** Credit granted and not used, and what was received and not taken, in events and bytes. */
export class CreditWindow {
  readonly #chosen: Grant;
  /** Chosen, or less, if the server of the present stream allows less. */
  #eventsMax: number;
  #bytesMax: number;
  #unusedEvents = 0;
  /** Below 0 where the last event overdrew it. */
  #unusedBytes = 0;
  #waitingEvents = 0;
  #waitingBytes = 0;

  constructor(eventsMax: number, bytesMax: number) {
    this.#chosen = { events: eventsMax, bytes: bytesMax };
    this.#eventsMax = eventsMax;
    this.#bytesMax = bytesMax;
  }

  /** A new stream: earlier grants are void. The credit to open with leaves room for what still waits. */
  open(): Grant {
    ({ events: this.#eventsMax, bytes: this.#bytesMax } = this.#chosen);
    this.#unusedEvents = Math.max(0, this.#eventsMax - this.#waitingEvents);
    this.#unusedBytes = Math.max(0, this.#bytesMax - this.#waitingBytes);
    if (this.#unusedEvents === 0 || this.#unusedBytes === 0) {
      // One without the other brings nothing. A server that clamps it would leave nothing to grant after that.
      this.#unusedEvents = this.#unusedBytes = 0;
    }
    return { events: this.#unusedEvents, bytes: this.#unusedBytes };
  }

  /** The server's limits: it clamps unused credit to them, and so does this window. 0 says nothing. */
  limit(eventsMax: number, bytesMax: number): void {
    if (eventsMax > 0) {
      this.#eventsMax = Math.min(this.#eventsMax, eventsMax);
      this.#unusedEvents = Math.min(this.#unusedEvents, eventsMax);
    }
    if (bytesMax > 0) {
      this.#bytesMax = Math.min(this.#bytesMax, bytesMax);
      this.#unusedBytes = Math.min(this.#unusedBytes, bytesMax);
    }
  }

  /**
   * Events arrived, the last of them `lastBytes` large. Throws ProtocolError where they exceed the credit; one event may
   * overdraw the bytes.
   */
  receive(events: number, bytes: number, lastBytes: number): void {
    this.#unusedEvents -= events;
    this.#unusedBytes -= bytes;
    this.#waitingEvents += events;
    this.#waitingBytes += bytes;
    if (this.#unusedEvents < 0) {
      throw new ProtocolError(`${String(-this.#unusedEvents)} events more than the credit granted`);
    }
    if (this.#unusedBytes < 0 && -this.#unusedBytes >= lastBytes) {
      throw new ProtocolError(`${String(-this.#unusedBytes)} bytes more than the credit granted`);
    }
  }

  /** Received events were handed out, or nobody will take them. */
  take(events: number, bytes: number): void {
    this.#waitingEvents -= events;
    this.#waitingBytes -= bytes;
  }

  /** What to grant now: nothing until a quarter of the window in events or bytes has been taken. */
  refill(): Grant | undefined {
    const events = this.#eventsMax - this.#waitingEvents - this.#unusedEvents;
    const bytes = this.#bytesMax - this.#waitingBytes - this.#unusedBytes;
    if (events < 1 || bytes < 1 || (events * 4 < this.#eventsMax && bytes * 4 < this.#bytesMax)) {
      return undefined;
    }
    this.#unusedEvents += events;
    this.#unusedBytes += bytes;
    return { events, bytes };
  }
}
