/**
 * What was delivered under which number, what of it is acked, and what must not come out a second time.
 *
 * The client numbers events with ordinals that never restart; the server's delivery sequences restart with every stream.
 * The ledger maps one to the other by ranges, keeps the unacked batches of a durable subscription, and after a reconnect
 * recognises them by their `_id` when they come again. Pure; `runner` owns one and feeds it in the order of arrival.
 *
 * Invariant: `kept` holds exactly the events received and not acked, in ordinal order; `ranges` hold the sequences of the
 * present stream that are not yet covered by an ack, in sequence order.
 */

import type { Timestamp } from "bson";

import type { Batch } from "./batches.js";
import { ProtocolError } from "./errors.js";
import { isEarlier, NOWHERE, type Place, tokenPlace, tokenTime } from "./places.js";

interface Range {
  readonly sequence: number;
  readonly ordinal: number;
  count: number;
}

/**
 * Bookkeeping of one session object. `durable` says that acks matter and that a reopened stream may repeat; an inline feed
 * continues behind the last event received, so nothing is kept for it.
 */
export class Ledger {
  readonly #durable: boolean;
  #received = 0;
  #nextSequence = 1;
  #ackedSequence = 0;
  #floor = 0;
  #ranges: Range[] = [];
  #kept: Batch[] = [];
  readonly #repeats = new Map<string, number>();
  #repeatsUntil: Timestamp | undefined;
  #ackedPlace = NOWHERE;
  #latest = NOWHERE;

  constructor(durable: boolean) {
    this.#durable = durable;
  }

  /** The highest ordinal given out. */
  get received(): number {
    return this.#received;
  }

  /** The place up to which everything has been received. */
  get latest(): Place {
    return this.#latest;
  }

  /** Whether events handed out before may still come again. */
  expectsRepeats(): boolean {
    return this.#repeats.size > 0;
  }

  /** The place up to which everything is acked: where a new stream has to begin. NOWHERE at the start. */
  ackedPlace(acked: number): Place {
    const done = Math.max(acked, this.#floor);
    if (done >= this.#received) {
      return this.#latest;
    }
    this.#prune(done);
    const first = this.#kept[0];
    if (first !== undefined && first.firstSequence <= done) {
      const key = first.eventKey(done - first.firstSequence);
      if (key.length > 0) {
        return tokenPlace(key);
      }
    }
    return this.#ackedPlace;
  }

  /** The stored position was moved on purpose: what is unacked has lost its meaning, and may come again. */
  forget(): void {
    this.#floor = this.#received;
    this.#kept = [];
    this.#repeats.clear();
    this.#ackedPlace = this.#latest = NOWHERE;
  }

  /** A stream begins at `opened`, its sequences at 1. Acks up to `acked` were known when it was asked for. */
  begin(opened: Place, acked: number): void {
    this.#nextSequence = 1;
    this.#ackedSequence = 0;
    this.#ranges = [];
    this.#repeats.clear();
    this.#prune(Math.max(acked, this.#floor));
    if (this.#kept.length === 0) {
      this.#ackedPlace = this.#latest = opened;
      return;
    }
    let last: Buffer | undefined;
    for (const batch of this.#kept) {
      for (let index = Math.max(0, acked + 1 - batch.firstSequence); index < batch.length; index++) {
        last = batch.eventKey(index);
        if (last.length > 0) {
          this.#repeats.set(nameOf(last), batch.firstSequence + index);
        }
      }
    }
    this.#repeatsUntil = last && tokenTime(last);
  }

  /** A batch arrived: it, or what of it is new, numbered. Throws ProtocolError at a gap in the sequence. */
  arrive(firstSequence: bigint, batch: Batch): Batch[] {
    if (firstSequence !== BigInt(this.#nextSequence)) {
      throw new ProtocolError(`delivery ${String(firstSequence)} came where ${String(this.#nextSequence)} was due`);
    }
    const sequence = this.#nextSequence;
    this.#nextSequence += batch.length;
    if (this.expectsRepeats()) {
      this.#stopAtNews(batch);
    }
    if (!this.expectsRepeats()) {
      this.#take(sequence, batch);
      this.#latest = batch.place;
      return [batch];
    }
    const fresh = this.#sift(sequence, batch);
    if (!this.expectsRepeats()) {
      this.#latest = batch.place;
    }
    return fresh;
  }

  /** Everything at or before `place` has been delivered: so have repeats, or they do not come. */
  progress(place: Place): void {
    if (isEarlier(this.#repeatsUntil, place.clusterTime)) {
      this.#repeats.clear();
    }
    if (!this.expectsRepeats()) {
      this.#latest = place;
    }
  }

  /**
   * The delivery sequence of the present stream up to which everything is acked; 0 for nothing. After a rewind older
   * events stand before those handed out earlier: then the first of them not acked decides.
   */
  ackedSequence(acked: number): number {
    this.#prune(acked);
    for (let range = this.#ranges[0]; range !== undefined; range = this.#ranges[0]) {
      const done = Math.min(acked - range.ordinal + 1, range.count);
      if (done <= 0) {
        break;
      }
      this.#ackedSequence = range.sequence + done - 1;
      if (done < range.count) {
        break;
      }
      this.#ranges.shift();
    }
    return this.#ackedSequence;
  }

  #take(sequence: number, batch: Batch): void {
    batch.firstSequence = this.#received + 1;
    this.#received += batch.length;
    this.#map(sequence, batch.firstSequence, batch.length);
    if (this.#durable) {
      this.#kept.push(batch);
    }
  }

  #sift(sequence: number, batch: Batch): Batch[] {
    const fresh: Batch[] = [];
    let start = 0;
    const takePart = (end: number): void => {
      if (end > start) {
        const part = batch.part(start, end);
        this.#take(sequence + start, part);
        fresh.push(part);
      }
    };
    for (let index = 0; index < batch.length; index++) {
      const name = nameOf(batch.eventKey(index));
      const ordinal = this.#repeats.get(name);
      if (ordinal !== undefined) {
        this.#repeats.delete(name);
        takePart(index);
        this.#map(sequence + index, ordinal, 1);
        start = index + 1;
      }
    }
    takePart(batch.length);
    return fresh;
  }

  #stopAtNews(batch: Batch): void {
    if (isEarlier(this.#repeatsUntil, tokenTime(batch.eventKey(0)))) {
      this.#repeats.clear();
    }
  }

  #map(sequence: number, ordinal: number, count: number): void {
    if (!this.#durable) {
      return;
    }
    const last = this.#ranges.at(-1);
    if (last?.sequence === sequence - (last?.count ?? 0) && last.ordinal === ordinal - last.count) {
      last.count += count;
    } else {
      this.#ranges.push({ sequence, ordinal, count });
    }
  }

  #prune(acked: number): void {
    for (let batch = this.#kept[0]; batch !== undefined && batch.lastSequence <= acked; batch = this.#kept[0]) {
      this.#kept.shift();
      if (batch.place.position.length > 0) {
        this.#ackedPlace = batch.place;
        continue;
      }
      const key = batch.eventKey(batch.length - 1);
      if (key.length > 0) {
        this.#ackedPlace = tokenPlace(key);
      }
    }
  }
}

function nameOf(key: Buffer): string {
  return key.toString("latin1");
}
