/** Places in a feed: feedmux's position, MongoDB's resume token and the cluster time, as they travel together. */

import { deserialize, type Document, Timestamp } from "bson";

import { ProtocolError } from "./errors.js";

const ID_FIRST = Buffer.from("\x03_id\0", "latin1");
const ID_FIRST_END = 4 + ID_FIRST.length;
const NO_BYTES = Buffer.alloc(0);

/** A place in a feed: everything at or before it has been delivered. */
export class Place {
  /** Opaque; to be stored as it is. Empty where only a resume token is known. */
  readonly position: Buffer;
  /** MongoDB's resume token as BSON; empty where there is none. */
  readonly token: Buffer;
  /** The cluster time; undefined where it is unknown. */
  readonly clusterTime: Timestamp | undefined;

  constructor(position: Buffer = NO_BYTES, token: Buffer = NO_BYTES, clusterTime?: Timestamp) {
    this.position = position;
    this.token = token;
    this.clusterTime = clusterTime;
  }

  /** MongoDB's resume token as a document, or undefined. */
  get resumeToken(): Document | undefined {
    return this.token.length > 0 ? deserialize(this.token) : undefined;
  }
}

/** Before the beginning. */
export const NOWHERE = new Place();

/**
 * The `_id` of an event as BSON bytes, its resume token, as a view on the event's bytes. Empty where the event has no
 * document as `_id`. `_id` need not be the first field: a pipeline with $replaceRoot moves it.
 */
export function eventId(event: Buffer): Buffer {
  if (event.length >= ID_FIRST_END + 4 && event.compare(ID_FIRST, 0, ID_FIRST.length, 4, ID_FIRST_END) === 0) {
    return event.subarray(ID_FIRST_END, ID_FIRST_END + event.readInt32LE(ID_FIRST_END));
  }
  let id: unknown;
  try {
    id = deserialize(event, { raw: true })["_id"];
  } catch (error) {
    throw new ProtocolError("an event is not BSON", error);
  }
  return Buffer.isBuffer(id) ? id : NO_BYTES;
}

/**
 * The cluster time inside a resume token. Undefined for a layout that is not MongoDB's hex key string beginning with a
 * timestamp: such a token is not compared.
 */
export function tokenTime(token: Buffer): Timestamp | undefined {
  let data: unknown;
  try {
    data = deserialize(token)["_data"];
  } catch {
    return undefined;
  }
  if (typeof data !== "string" || !/^82[0-9a-f]{16}/i.test(data)) {
    return undefined;
  }
  return new Timestamp({ t: parseInt(data.slice(2, 10), 16), i: parseInt(data.slice(10, 18), 16) });
}

/** Whether both are known and the first is earlier. */
export function isEarlier(one: Timestamp | undefined, other: Timestamp | undefined): boolean {
  return one !== undefined && other !== undefined && one.compare(other) < 0;
}
