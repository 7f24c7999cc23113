/**
 * Batches and events as the user sees them.
 *
 * A batch is a view on the bytes of the message it came in; nothing is decoded or copied until it is asked for. Batches
 * are made by `responses`, numbered by `delivery-tracker` and handed out by sessions. Ordinals are the client's own: they
 * count from 1 over the life of a session object, through reconnects.
 */

import { deserialize, type DeserializeOptions, type Document, type Timestamp } from "bson";

import { ProtocolError } from "./errors.js";
import { toBson } from "./extended-json.js";
import { eventId, jsonEventId, FeedPosition } from "./positions.js";

const SMALLEST_DOCUMENT = 5;

/** One change event. */
export class ChangeEvent<T extends Document = Document> {
  readonly batch: Batch<T>;
  /** Within the batch, from 0. */
  readonly index: number;
  #document: T | undefined;

  /** @internal */
  constructor(batch: Batch<T>, index: number) {
    this.batch = batch;
    this.index = index;
  }

  /** The event decoded with the session's `bson` options; the same object each time. Throws BSONError, ProtocolError. */
  get document(): T {
    return (this.#document ??= this.batch.decode(this.index));
  }

  /** The event's bytes: BSON as MongoDB sent it, or extended JSON in UTF-8. A view where it can be one: copy it to keep it long. */
  get raw(): Buffer {
    return this.batch.rawEvent(this.index);
  }

  /** MongoDB's resume token: the event's `_id`. Undefined if the pipeline removed it. */
  get resumeToken(): Document | undefined {
    const key = this.batch.eventKey(this.index);
    return key.length > 0 ? deserialize(key) : undefined;
  }

  /** Whether the event is a document of a copy (start `snapshot`) rather than a change. */
  get snapshot(): boolean {
    return this.batch.snapshot;
  }

  /** The number of this event within the session object, from 1. */
  get sequence(): number {
    return this.batch.firstSequence + this.index;
  }
}

/** Consecutive events in MongoDB's order. */
export abstract class Batch<T extends Document = Document> implements Iterable<ChangeEvent<T>> {
  /** How many events there are. */
  readonly length: number;
  /** The position after the last event. It is empty for the first part of a batch that was split. */
  readonly feedPosition: FeedPosition;
  /** When the server read the first of these events from MongoDB; undefined for a fragmented event. */
  readonly readTime: Date | undefined;
  /** Bytes of the events, as credit counts them. */
  abstract readonly sizeBytes: number;
  /** The number of the first event within the session object. */
  firstSequence = 0;
  /** Whether the events are documents of a copy (start `snapshot`) rather than changes: all of them are, or none. */
  snapshot = false;
  /**
   * The number of the last copy that the session had read, or was reading, when the batch came; 0 for none. See
   * `SnapshotComplete`.
   */
  generation = 0;
  /** @internal The connection of the session that received the batch. */
  owner: object | undefined;
  protected readonly options: DeserializeOptions;

  protected constructor(
    length: number,
    feedPosition: FeedPosition,
    readTime: Date | undefined,
    options: DeserializeOptions,
  ) {
    this.length = length;
    this.feedPosition = feedPosition;
    this.readTime = readTime;
    this.options = options;
  }

  /** The events one by one. */
  *[Symbol.iterator](): Iterator<ChangeEvent<T>> {
    for (let index = 0; index < this.length; index++) {
      yield new ChangeEvent(this, index);
    }
  }

  /** The number of the last event within the session object. */
  get lastSequence(): number {
    return this.firstSequence + this.length - 1;
  }

  /** All events, decoded again with each call. Throws BSONError. */
  documents(): T[] {
    return Array.from({ length: this.length }, (_, index) => this.decode(index));
  }

  /** The position after the last event: store it unchanged. Empty for the first part of a batch that was split. */
  get position(): Buffer {
    return this.feedPosition.position;
  }

  /** MongoDB's resume token of that position. */
  get resumeToken(): Document | undefined {
    return this.feedPosition.resumeToken;
  }

  /** The cluster time of that position. */
  get clusterTime(): Timestamp | undefined {
    return this.feedPosition.clusterTime;
  }

  /** One event, decoded. Throws BSONError. */
  abstract decode(index: number): T;

  /** The bytes of one event. */
  abstract rawEvent(index: number): Buffer;

  /** @internal The resume token of one event as BSON; empty where there is none. */
  abstract eventKey(index: number): Buffer;

  /** @internal The events [first, end) as a batch of their own, on the same bytes. */
  abstract part(first: number, end: number): Batch<T>;

  protected feedPositionOfPart(end: number): FeedPosition {
    return end === this.length ? this.feedPosition : new FeedPosition();
  }

  protected number<B extends Batch<T>>(part: B, first: number): B {
    part.firstSequence = this.firstSequence + first;
    part.owner = this.owner;
    part.snapshot = this.snapshot;
    part.generation = this.generation;
    return part;
  }
}

/** A batch of BSON documents, one after the other. */
export class BsonBatch<T extends Document = Document> extends Batch<T> {
  /** The BSON of all events, one document after the other. It is not a copy. */
  readonly raw: Buffer;
  /** Where each event begins within `raw`, and the end: `length + 1` numbers. */
  readonly offsets: Int32Array;

  /** Throws ProtocolError where the documents' lengths do not add up. */
  constructor(
    raw: Buffer,
    length: number,
    feedPosition: FeedPosition,
    readTime: Date | undefined,
    options: DeserializeOptions,
  ) {
    super(length, feedPosition, readTime, options);
    this.raw = raw;
    this.offsets = split(raw, length);
  }

  get sizeBytes(): number {
    return this.raw.length;
  }

  decode(index: number): T {
    return deserialize(this.rawEvent(index), this.options) as T;
  }

  rawEvent(index: number): Buffer {
    return this.raw.subarray(this.offsets[index], this.offsets[index + 1]);
  }

  eventKey(index: number): Buffer {
    return eventId(this.rawEvent(index));
  }

  part(first: number, end: number): BsonBatch<T> {
    const raw = this.raw.subarray(this.offsets[first], this.offsets[end]);
    return this.number(
      new BsonBatch<T>(raw, end - first, this.feedPositionOfPart(end), this.readTime, this.options),
      first,
    );
  }
}

/** A batch of extended JSON texts. */
export class JsonBatch<T extends Document = Document> extends Batch<T> {
  /** One text per event. */
  readonly texts: readonly string[];
  readonly sizeBytes: number;

  constructor(
    texts: readonly string[],
    feedPosition: FeedPosition,
    readTime: Date | undefined,
    options: DeserializeOptions,
  ) {
    super(texts.length, feedPosition, readTime, options);
    this.texts = texts;
    this.sizeBytes = texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
  }

  decode(index: number): T {
    // By way of BSON, so that a value looks the same whatever the format it came in.
    const text = this.#text(index);
    const raw = parsed(() => toBson(text), "an event cannot be decoded from its Extended JSON; use format bson");
    return deserialize(raw, this.options) as T;
  }

  rawEvent(index: number): Buffer {
    return Buffer.from(this.#text(index));
  }

  eventKey(index: number): Buffer {
    return parsed(() => jsonEventId(this.#text(index)), "an event is not extended JSON");
  }

  part(first: number, end: number): JsonBatch<T> {
    const texts = this.texts.slice(first, end);
    return this.number(new JsonBatch<T>(texts, this.feedPositionOfPart(end), this.readTime, this.options), first);
  }

  #text(index: number): string {
    const text = this.texts[index];
    if (text === undefined) {
      throw new RangeError(`event ${String(index)} of ${String(this.length)}`);
    }
    return text;
  }
}

function parsed<T>(parse: () => T, message: string): T {
  try {
    return parse();
  } catch (error) {
    throw new ProtocolError(message, error);
  }
}

function split(raw: Buffer, count: number): Int32Array {
  const offsets = new Int32Array(count + 1);
  let at = 0;
  for (let index = 1; index <= count; index++) {
    const size = at + 4 <= raw.length ? raw.readInt32LE(at) : 0;
    if (size < SMALLEST_DOCUMENT || size > raw.length - at) {
      throw new ProtocolError("the lengths of a batch do not add up");
    }
    at += size;
    offsets[index] = at;
  }
  if (at !== raw.length) {
    throw new ProtocolError("the lengths of a batch do not add up");
  }
  return offsets;
}
