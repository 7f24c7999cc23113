/**
 * Which events were delivered under which number, which are acked, and which must not be handed out twice.
 *
 * The client numbers events with ordinals that never restart; the server's delivery sequences restart with every
 * stream. The tracker maps one to the other by ranges, retains the unacked batches of a durable subscription, and
 * recognises them by their `_id` when they come again after a reconnect. Beyond `wholeBytesMax` bytes, it retains only their
 * `_id`s. Pure; `connection` owns one and feeds it in the order of arrival.
 *
 * Invariant: `unacked` begins with the first event in stream order that is not acked, and holds all received after it,
 * in stream order. That is the order of ordinals, unless events came among repeats that had not been there before: the
 * filter was widened. `ranges` hold the sequences of the present stream that are not yet covered by an ack, in sequence
 * order.
 */

import type { Timestamp } from "bson";

import type { Batch } from "./batches.js";
import { ProtocolError } from "./errors.js";
import { isEarlier, NO_POSITION, FeedPosition, tokenPosition, tokenTime } from "./positions.js";

interface Range {
  readonly sequence: number;
  readonly ordinal: number;
  count: number;
}

/** A batch that is not acked to its end: whole, because that costs nothing, or reduced to its resume tokens. */
class UnackedBatch {
  readonly firstSequence: number;
  length: number;
  feedPosition: FeedPosition;
  /** Of the events; 0 when reduced. */
  sizeBytes: number;
  #batch: Batch | undefined;
  #tokens: Buffer = Buffer.alloc(0);
  /** Token i ends at `ends[i]`. */
  #ends: number[] = [];

  constructor(firstSequence: number, length: number, feedPosition: FeedPosition, batch?: Batch) {
    this.firstSequence = firstSequence;
    this.length = length;
    this.feedPosition = feedPosition;
    this.sizeBytes = batch?.sizeBytes ?? 0;
    this.#batch = batch;
  }

  static whole(batch: Batch): UnackedBatch {
    return new UnackedBatch(batch.firstSequence, batch.length, batch.feedPosition, batch);
  }

  get lastSequence(): number {
    return this.firstSequence + this.length - 1;
  }

  /** As `Batch.eventKey`. */
  eventKey(index: number): Buffer {
    return this.#batch !== undefined
      ? keyOf(this.#batch, index)
      : this.#tokens.subarray(this.#ends[index - 1] ?? 0, this.#ends[index]);
  }

  /**
   * Evicts everything but the tokens and the position, and copies these into separate memory: Buffer.from would share a
   * pool with messages.
   */
  reduce(): void {
    const batch = this.#batch;
    if (batch === undefined) {
      return;
    }
    const tokens = Array.from({ length: this.length }, (_, index) => keyOf(batch, index));
    const { position, token, clusterTime } = this.feedPosition;
    const size = tokens.reduce((sum, each) => sum + each.length, position.length + token.length);
    const own = Buffer.allocUnsafeSlow(size);
    let end = 0;
    const copy = (bytes: Buffer): Buffer => {
      const start = end;
      end += bytes.copy(own, start);
      return own.subarray(start, end);
    };
    this.#ends = tokens.map((each) => (copy(each), end));
    this.#tokens = own.subarray(0, end);
    this.feedPosition = new FeedPosition(copy(position), copy(token), clusterTime);
    this.drop();
  }

  /** Evicts the batch. */
  drop(): void {
    this.#batch = undefined;
    this.sizeBytes = 0;
  }

  /** Keeps the first `at` events and returns the rest. Only of a reduced one. */
  split(at: number): UnackedBatch {
    const cut = this.#ends[at - 1] ?? 0;
    const rest = new UnackedBatch(this.firstSequence + at, this.length - at, this.feedPosition);
    rest.#tokens = this.#tokens.subarray(cut);
    rest.#ends = this.#ends.slice(at).map((end) => end - cut);
    this.length = at;
    this.feedPosition = NO_POSITION;
    this.#tokens = this.#tokens.subarray(0, cut);
    this.#ends = this.#ends.slice(0, at);
    return rest;
  }
}

/**
 * Bookkeeping of one session object. `durable` says that acks matter and that a reopened stream may repeat; an inline
 * feed continues after the last event received, so nothing is retained for it.
 */
export class DeliveryTracker {
  /** Whether what arrives belongs to a copy of existing documents: its documents, and changes until its end. */
  withinCopy = false;
  /** The last ordinal within a copy. A resume token does not name the copy: only a whole position does. */
  #copiedUntil = 0;
  readonly #durable: boolean;
  #received = 0;
  #nextSequence = 1;
  #ackedSequence = 0;
  #floor = 0;
  #ranges: Range[] = [];
  #unacked: UnackedBatch[] = [];
  readonly #wholeBytesMax: number;
  #wholeBytes = 0;
  /** Those of `unacked` that are whole, the oldest first, and dropped ones among them. */
  #whole: UnackedBatch[] = [];
  readonly #repeats = new Map<string, number>();
  #repeatsUntil: Timestamp | undefined;
  /** While repeats are expected: the stream has come past so many batches of `unacked`, and events of the next one. */
  #passed = 0;
  #passedEvents = 0;
  #ackedPosition = NO_POSITION;
  #latest = NO_POSITION;

  constructor(durable: boolean, wholeBytesMax: number) {
    this.#durable = durable;
    this.#wholeBytesMax = wholeBytesMax;
  }

  /** Bytes of the unacked events that are retained whole. */
  get wholeBytes(): number {
    return this.#wholeBytes;
  }

  /** The highest ordinal given out. */
  get received(): number {
    return this.#received;
  }

  /** The position up to which everything has been received. */
  get latest(): FeedPosition {
    return this.#latest;
  }

  /** Whether events handed out before may still come again. */
  expectsRepeats(): boolean {
    return this.#repeats.size > 0;
  }

  /**
   * Whether acks up to an ordinal are neither sent nor in the Open of the stream: those of events that may come again.
   * Within a copy, the Open may name an earlier position than the last ack.
   */
  owesAcks(acked: number): boolean {
    const [first] = this.#unacked;
    if (first !== undefined && first.firstSequence <= this.#copiedUntil) {
      return this.expectsRepeats();
    }
    for (const ordinal of this.#repeats.values()) {
      if (ordinal <= acked) {
        return true;
      }
    }
    return false;
  }

  /** The position up to which everything is acked: where a new stream has to begin. NO_POSITION at the start. */
  ackedPosition(acked: number): FeedPosition {
    const done = Math.max(acked, this.#floor);
    if (done >= this.#received && !this.expectsRepeats()) {
      return this.#latest;
    }
    const settled = this.#settle(done);
    const key = settled > 0 ? this.#key(this.#unacked[0], settled - 1) : undefined;
    return key !== undefined && key.length > 0 ? tokenPosition(key) : this.#ackedPosition;
  }

  /** The stored position was moved on purpose: what is unacked has lost its meaning, and may come again. */
  forget(): void {
    this.#floor = this.#received;
    this.#unacked = [];
    this.#whole = [];
    this.#wholeBytes = 0;
    this.#repeats.clear();
    this.#ackedPosition = this.#latest = NO_POSITION;
  }

  /**
   * A stream begins at `opened`, with sequence 1. Acks up to `acked` were known when the client requested the stream.
   */
  begin(opened: FeedPosition, acked: number): void {
    this.#nextSequence = 1;
    this.#ackedSequence = 0;
    this.#ranges = [];
    let settled = this.#settle(Math.max(acked, this.#floor));
    this.#repeats.clear();
    if (this.#unacked.length === 0) {
      this.#ackedPosition = this.#latest = opened;
      return;
    }
    this.#passed = 0;
    this.#passedEvents = settled;
    let last: Buffer | undefined;
    for (const batch of this.#unacked) {
      for (let index = settled; index < batch.length; index++) {
        last = batch.eventKey(index);
        if (last.length > 0) {
          this.#repeats.set(nameOf(last), batch.firstSequence + index);
        }
      }
      settled = 0;
    }
    this.#repeatsUntil = last && tokenTime(last);
  }

  /**
   * A batch arrived: it, or what of it is new, numbered. Throws ProtocolError at a gap in the sequence. `acked` is the highest
   * ordinal acked: what is, need not be retained.
   */
  arrive(firstSequence: bigint, batch: Batch, acked = 0): Batch[] {
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
      if (this.#durable) {
        this.#retain(batch, acked);
      }
      this.#latest = batch.feedPosition;
      return [batch];
    }
    const fresh = this.#sift(sequence, batch);
    if (!this.expectsRepeats()) {
      this.#latest = batch.feedPosition;
    }
    return fresh;
  }

  /** Everything at or before `feedPosition` has been delivered: repeats up to there no longer come. */
  progress(feedPosition: FeedPosition): void {
    if (isEarlier(this.#repeatsUntil, feedPosition.clusterTime)) {
      this.#repeats.clear();
    }
    if (!this.expectsRepeats()) {
      this.#latest = feedPosition;
    }
  }

  /**
   * The delivery sequence of the present stream up to which everything is acked; 0 for nothing. After a rewind older
   * events stand before those handed out earlier: then the first of them not acked decides.
   */
  ackedSequence(acked: number): number {
    this.#settle(acked);
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

  #retain(batch: Batch, acked: number): void {
    const unacked = UnackedBatch.whole(batch);
    this.#unacked.push(unacked);
    this.#whole.push(unacked);
    this.#wholeBytes += unacked.sizeBytes;
    if (this.#wholeBytes > this.#wholeBytesMax) {
      this.#settle(acked);
    }
    while (this.#wholeBytes > this.#wholeBytesMax) {
      this.#reduce(this.#whole.shift());
    }
  }

  #reduce(unacked: UnackedBatch | undefined): void {
    this.#wholeBytes -= unacked?.sizeBytes ?? 0;
    unacked?.reduce();
  }

  /** Evicts the first of `unacked`. */
  #evictFirst(): void {
    const unacked = this.#unacked.shift();
    this.#wholeBytes -= unacked?.sizeBytes ?? 0;
    unacked?.drop();
    while (this.#whole[0]?.sizeBytes === 0) {
      this.#whole.shift();
    }
  }

  #take(sequence: number, batch: Batch): void {
    batch.firstSequence = this.#received + 1;
    this.#received += batch.length;
    if (this.withinCopy) {
      this.#copiedUntil = this.#received;
    }
    this.#map(sequence, batch.firstSequence, batch.length);
  }

  #sift(sequence: number, batch: Batch): Batch[] {
    const fresh: Batch[] = [];
    let start = 0;
    const takePart = (end: number): void => {
      if (end > start) {
        const part = batch.part(start, end);
        this.#take(sequence + start, part);
        this.#insert(part);
        fresh.push(part);
      }
    };
    for (let index = 0; index < batch.length; index++) {
      const name = nameOf(keyOf(batch, index));
      const ordinal = this.#repeats.get(name);
      if (ordinal !== undefined) {
        this.#repeats.delete(name);
        takePart(index);
        this.#map(sequence + index, ordinal, 1);
        this.#pass(ordinal);
        start = index + 1;
      }
    }
    takePart(batch.length);
    return fresh;
  }

  #stopAtNews(batch: Batch): void {
    if (isEarlier(this.#repeatsUntil, tokenTime(keyOf(batch, 0)))) {
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

  /** An event of `unacked` came again. They come in stream order. */
  #pass(ordinal: number): void {
    for (let index = this.#passed; index < this.#unacked.length; index++) {
      const batch = this.#unacked[index];
      if (batch !== undefined && batch.firstSequence <= ordinal && ordinal <= batch.lastSequence) {
        this.#passed = index;
        this.#passedEvents = ordinal + 1 - batch.firstSequence;
        return;
      }
    }
  }

  /** Keeps a batch that is new among repeats: it belongs where the stream is. */
  #insert(batch: Batch): void {
    const around = this.#unacked[this.#passed];
    const cut = this.#passedEvents;
    if (around !== undefined && cut > 0) {
      if (cut < around.length) {
        this.#reduce(around);
        this.#unacked.splice(this.#passed + 1, 0, around.split(cut));
      }
      this.#passed++;
    }
    // A part of a message keeps the whole message in memory.
    const unacked = UnackedBatch.whole(batch);
    unacked.reduce();
    this.#unacked.splice(this.#passed, 0, unacked);
    this.#passedEvents = unacked.length;
  }

  /** The token of an event, if a new stream may begin after the event alone; else empty. */
  #key(batch: UnackedBatch | undefined, index: number): Buffer {
    return batch !== undefined && batch.firstSequence > this.#copiedUntil ? batch.eventKey(index) : Buffer.alloc(0);
  }

  /**
   * Lets go of what is acked up to the first event that is not. Returns how many of the first batch left are acked. While
   * repeats are expected, not further than the stream has come: new events may come before the next of them.
   */
  #settle(acked: number): number {
    for (let batch = this.#unacked[0]; batch !== undefined; batch = this.#unacked[0]) {
      let done = Math.min(batch.length, Math.max(0, acked + 1 - batch.firstSequence));
      if (this.expectsRepeats() && this.#passed === 0) {
        done = Math.min(done, this.#passedEvents);
      }
      if (done < batch.length) {
        return done;
      }
      const key = batch.feedPosition.position.length > 0 ? undefined : this.#key(batch, batch.length - 1);
      this.#evictFirst();
      if (this.#passed > 0) {
        this.#passed--;
      } else {
        this.#passedEvents = 0;
      }
      if (key === undefined) {
        this.#ackedPosition = batch.feedPosition;
      } else if (key.length > 0) {
        this.#ackedPosition = tokenPosition(key);
      }
    }
    return 0;
  }
}

/**
 * The resume token of an event. Empty for what is neither BSON nor JSON: its decoding reports the error, and as it has no
 * `_id`, it is no repeat when it comes again.
 */
function keyOf(batch: Batch, index: number): Buffer {
  try {
    return batch.eventKey(index);
  } catch (error) {
    if (error instanceof ProtocolError) {
      return Buffer.alloc(0);
    }
    throw error;
  }
}

function nameOf(key: Buffer): string {
  return key.toString("latin1");
}
