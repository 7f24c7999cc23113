/**
 * What comes down: bytes of a SubscribeResponse to the client's own values.
 *
 * A batch's events are never copied: `BsonBatch` is laid over the message. Fields and kinds that are not known are
 * ignored.
 */

import { fromBinary } from "@bufbuild/protobuf";
import { type DeserializeOptions, Timestamp } from "bson";

import { type Batch, BsonBatch, JsonBatch } from "./batches.js";
import { ProtocolError } from "./errors.js";
import {
  type Batch as BatchMessage,
  type EventFragment,
  type Notice as NoticeMessage,
  type Opened as OpenedMessage,
  type Progress as ProgressMessage,
  type SubscribeResponse,
  SubscribeResponseSchema,
} from "./gen/feedmux/v1/change_feed_pb.js";
import {
  type ClusterTime,
  type SnapshotStatus as SnapshotStatusMessage,
  SnapshotStatus_State,
} from "./gen/feedmux/v1/feed_pb.js";
import type { Notice, SnapshotStatus } from "./notices.js";
import { FeedPosition } from "./positions.js";
import { clusterTimeValue, dateValue, milliseconds, snapshotValue } from "./requests.js";

/** The stream is open. A limit of 0 says nothing. */
export interface Opened {
  readonly kind: "opened";
  readonly epoch: bigint;
  readonly feedPosition: FeedPosition;
  readonly atLastAcked: boolean;
  readonly heartbeatMs: number;
  readonly creditEventsMax: number;
  readonly creditBytesMax: number;
  readonly unackedEventsMax: number;
  readonly messageBytesMax: number;
  readonly routingKey: string;
  /** Set if the session begins within a copy of existing documents. */
  readonly copying: SnapshotStatus | undefined;
}

/** Events, and the sequence of the first of them. */
export interface Delivery {
  readonly kind: "delivery";
  readonly firstSequence: bigint;
  readonly batch: Batch;
}

/** Everything at or before `feedPosition` has been delivered. */
export interface Progress {
  readonly kind: "progress";
  readonly feedPosition: FeedPosition;
}

/** Acks up to `sequence` are durable; `position` is stored. */
export interface Committed {
  readonly kind: "committed";
  readonly sequence: bigint;
  readonly position: Buffer;
}

/** Something to know. */
export interface Said {
  readonly kind: "said";
  readonly notice: Notice;
}

export type Response = Opened | Delivery | Progress | Committed | Said;

/** Reads the messages of one session: knows its format and options, and puts fragments together. */
export class Reader {
  readonly #json: boolean;
  readonly #options: DeserializeOptions;
  #fragments: Uint8Array[] = [];
  #sequence = 0n;
  #count = 0;

  constructor(json: boolean, options: DeserializeOptions) {
    this.#json = json;
    this.#options = options;
  }

  /** A new stream: unfinished fragments are void. */
  reset(): void {
    this.#fragments = [];
  }

  /** One message; undefined for a kind that is not known or part of an unfinished event. Throws ProtocolError. */
  read(bytes: Buffer): Response | undefined {
    const { message } = parse(bytes);
    if (message.case === "eventFragment") {
      return this.#join(message.value);
    }
    const response = this.#response(message);
    if (this.#fragments.length > 0 && response !== undefined) {
      throw new ProtocolError("a message came between the fragments of an event");
    }
    return response;
  }

  #response(message: Exclude<SubscribeResponse["message"], { case: "eventFragment" }>): Response | undefined {
    switch (message.case) {
      case "batch":
        return this.#delivery(message.value);
      case "progress":
        return { kind: "progress", feedPosition: feedPosition(message.value) };
      case "committed":
        return {
          kind: "committed",
          sequence: message.value.deliverySequence,
          position: Buffer.from(message.value.position),
        };
      case "opened":
        return opened(message.value);
      case "notice": {
        const notice = noticeValue(message.value);
        return notice && { kind: "said", notice };
      }
      case undefined:
        return undefined;
    }
  }

  #delivery(message: BatchMessage): Delivery {
    const { eventCount: count, firstDeliverySequence: firstSequence } = message;
    if (count < 1) {
      throw new ProtocolError("a batch without events");
    }
    const readTime = dateValue(message.readTime);
    if (!this.#json) {
      const batch = new BsonBatch(view(message.bson), count, feedPosition(message), readTime, this.#options);
      batch.snapshot = message.snapshot;
      return { kind: "delivery", firstSequence, batch };
    }
    if (message.json.length !== count) {
      throw new ProtocolError(`a batch of ${String(count)} events holds ${String(message.json.length)} texts`);
    }
    const batch = new JsonBatch(message.json, feedPosition(message), readTime, this.#options);
    batch.snapshot = message.snapshot;
    return { kind: "delivery", firstSequence, batch };
  }

  #join(part: EventFragment): Delivery | undefined {
    const isFirst = part.index === 0;
    if (
      part.index !== this.#fragments.length ||
      part.index >= part.count ||
      (!isFirst && (part.deliverySequence !== this.#sequence || part.count !== this.#count))
    ) {
      throw new ProtocolError("fragments of an event out of order");
    }
    this.#sequence = part.deliverySequence;
    this.#count = part.count;
    this.#fragments.push(part.data);
    if (this.#fragments.length < part.count) {
      return undefined;
    }
    const data = Buffer.concat(this.#fragments);
    this.#fragments = [];
    const batch = this.#json
      ? new JsonBatch([text(data)], feedPosition(part), undefined, this.#options)
      : new BsonBatch(data, 1, feedPosition(part), undefined, this.#options);
    batch.snapshot = part.snapshot;
    return { kind: "delivery", firstSequence: part.deliverySequence, batch };
  }
}

function parse(bytes: Buffer): SubscribeResponse {
  try {
    return fromBinary(SubscribeResponseSchema, bytes);
  } catch (error) {
    throw new ProtocolError("a message cannot be decoded", error);
  }
}

function text(data: Buffer): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch (error) {
    throw new ProtocolError("a fragmented event is not UTF-8", error);
  }
}

function view(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Copies the position out of the message, because a position may outlive its message. */
function feedPosition(message: OpenedMessage | BatchMessage | EventFragment | ProgressMessage): FeedPosition {
  return new FeedPosition(
    Buffer.from(message.position),
    Buffer.from(message.resumeToken),
    clusterTimeValue(message.clusterTime),
  );
}

function opened(message: OpenedMessage): Opened {
  const { limits } = message;
  return {
    kind: "opened",
    epoch: message.epoch,
    feedPosition: feedPosition(message),
    atLastAcked: message.atLastAcked,
    heartbeatMs: message.heartbeatInterval ? milliseconds(message.heartbeatInterval) : 0,
    creditEventsMax: Number(limits?.creditEventsMax ?? 0),
    creditBytesMax: Number(limits?.creditBytesMax ?? 0),
    unackedEventsMax: Number(limits?.unackedEventsMax ?? 0),
    messageBytesMax: limits?.messageBytesMax ?? 0,
    routingKey: message.routingKey,
    copying: message.snapshot && snapshotValue(message.snapshot),
  };
}

function noticeValue({ kind }: NoticeMessage): Notice | undefined {
  switch (kind.case) {
    case "draining": {
      const { deadline, position } = kind.value;
      return {
        kind: "draining",
        deadlineMs: deadline ? milliseconds(deadline) : 0,
        position: Buffer.from(position),
      };
    }
    case "rewound":
      return { kind: "rewound", beginsAt: timestamp(kind.value.from), hadReached: timestamp(kind.value.to) };
    case "skipped": {
      const { from, to, fromPosition, toPosition } = kind.value;
      return {
        kind: "skipped",
        hadReached: timestamp(from),
        beginsAt: timestamp(to),
        hadReachedPosition: Buffer.from(fromPosition),
        beginsAtPosition: Buffer.from(toPosition),
      };
    }
    case "historyAtRisk": {
      const { remaining } = kind.value;
      return { kind: "historyAtRisk", remainingMs: remaining ? milliseconds(remaining) : 0 };
    }
    case "gap": {
      const { from, to, reason } = kind.value;
      return { kind: "gap", after: timestamp(from), before: timestamp(to), reason };
    }
    case "degraded":
      return { kind: "degraded", dependency: kind.value.dependency, unavailable: kind.value.unavailable };
    case "unacknowledged":
      return { kind: "unacknowledged", events: Number(kind.value.events) };
    case "snapshot":
      return snapshotNotice(kind.value);
    case undefined:
      return undefined;
  }
}

/** Undefined for a state that is not known. */
function snapshotNotice(status: SnapshotStatusMessage): Notice | undefined {
  switch (status.state) {
    case SnapshotStatus_State.RUNNING:
      return { kind: "snapshotProgress", ...snapshotValue(status) };
    case SnapshotStatus_State.DONE: {
      const { documents, bytes, readTime, generation } = snapshotValue(status);
      return { kind: "snapshotComplete", documents, bytes, readTime, generation };
    }
    default:
      return undefined;
  }
}

function timestamp(time: ClusterTime | undefined): Timestamp {
  return new Timestamp({ t: time?.seconds ?? 0, i: time?.increment ?? 0 });
}
