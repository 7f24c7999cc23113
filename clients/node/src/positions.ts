/** Positions in a feed: feedmux's position, MongoDB's resume token and the cluster time, as they travel together. */

import { Binary, BSONType, deserialize, type Document, onDemand, serialize, Timestamp } from "bson";

import { ProtocolError } from "./errors.js";

const ID_FIRST = Buffer.from("\x03_id\0", "latin1");
const ID_FIRST_END = 4 + ID_FIRST.length;
const NO_BYTES = Buffer.alloc(0);

/** A position in a feed: everything at or before it has been delivered. */
export class FeedPosition {
  /** Opaque: store it unchanged. Empty if only a resume token is known. */
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
export const NO_POSITION = new FeedPosition();

/**
 * The `_id` of an event as BSON bytes, its resume token, as a view on the event's bytes. Empty where the event has no
 * document as `_id`. `_id` need not be the first field: a pipeline with $replaceRoot moves it. Nothing is decoded: an event
 * with a text that is not UTF-8 has its `_id` too, and is recognised by it when it comes again. Throws ProtocolError for
 * what is not BSON.
 */
export function eventId(event: Buffer): Buffer {
  if (event.length >= ID_FIRST_END + 4 && event.compare(ID_FIRST, 0, ID_FIRST.length, 4, ID_FIRST_END) === 0) {
    const size = event.readInt32LE(ID_FIRST_END);
    if (size > 0 && size < event.length - ID_FIRST_END) {
      return event.subarray(ID_FIRST_END, ID_FIRST_END + size);
    }
  }
  try {
    return field(event, "_id", BSONType.object) ?? NO_BYTES;
  } catch (error) {
    throw new ProtocolError("an event is not BSON", error);
  }
}

/** A field's bytes, as a view; undefined where there is none of the type. Throws BSONError for what is not BSON. */
function field(document: Buffer, name: string, type: number): Buffer | undefined {
  for (const [found, nameAt, nameSize, at, size] of onDemand.parseToElements(document)) {
    if (document.toString("latin1", nameAt, nameAt + nameSize) === name) {
      return found === type ? document.subarray(at, at + size) : undefined;
    }
  }
  return undefined;
}

/**
 * The `_id` of an event in extended JSON as the BSON that MongoDB sent: its resume token, bit for bit. Empty where `_id` is
 * anything but a resume token: nothing is made up. Throws SyntaxError for what is not JSON.
 *
 * A token is `{_data: <hex>}` or `{_data: <hex>, _typeBits: {$binary: {base64, subType}}}`, in the text's order. MongoDB
 * adds `_typeBits` where the hex alone cannot tell the type of a number: int64, double and decimal `_id`s.
 */
export function jsonEventId(text: string): Buffer {
  const event: unknown = JSON.parse(text);
  const id = isObject(event) ? event["_id"] : undefined;
  if (!isObject(id) || typeof id["_data"] !== "string") {
    return NO_BYTES;
  }
  const token: [string, string | Binary][] = [];
  for (const [name, value] of Object.entries(id)) {
    const part = name === "_data" ? hex(value) : name === "_typeBits" ? binary(value) : undefined;
    if (part === undefined) {
      return NO_BYTES;
    }
    token.push([name, part]);
  }
  return Buffer.from(serialize(Object.fromEntries(token)));
}

function hex(value: unknown): string | undefined {
  return typeof value === "string" && /^[0-9A-Fa-f]+$/.test(value) ? value : undefined;
}

function binary(value: unknown): Binary | undefined {
  const parts = isObject(value) && Object.keys(value).length === 1 ? value["$binary"] : undefined;
  if (!isObject(parts) || Object.keys(parts).length !== 2) {
    return undefined;
  }
  const { base64, subType } = parts;
  if (typeof base64 !== "string" || typeof subType !== "string" || !/^[0-9A-Fa-f]{1,2}$/.test(subType)) {
    return undefined;
  }
  const bytes = Buffer.from(base64, "base64");
  return bytes.toString("base64") === base64 ? new Binary(bytes, parseInt(subType, 16)) : undefined;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The position of an event whose resume token is all that is known. The token is copied: a view holds its whole message. */
export function tokenPosition(key: Buffer): FeedPosition {
  const token = Buffer.from(key);
  return new FeedPosition(undefined, token, tokenTime(token));
}

/**
 * The cluster time inside a resume token. Undefined for a layout that is not MongoDB's hex key string beginning with a
 * timestamp: such a token is not compared. A copied document's token has the document's `_id`, which is not decoded.
 */
export function tokenTime(token: Buffer): Timestamp | undefined {
  let data: string | undefined;
  try {
    data = field(token, "_data", BSONType.string)?.toString("latin1", 4);
  } catch {
    return undefined;
  }
  if (data === undefined || !/^82[0-9a-f]{16}/i.test(data)) {
    return undefined;
  }
  return new Timestamp({ t: parseInt(data.slice(2, 10), 16), i: parseInt(data.slice(10, 18), 16) });
}

/** Whether both are known and the first is earlier. */
export function isEarlier(one: Timestamp | undefined, other: Timestamp | undefined): boolean {
  return one !== undefined && other !== undefined && one.compare(other) < 0;
}
