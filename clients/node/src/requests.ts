/**
 * What goes up: messages made from the client's own values, and resources read back. With `responses` and `status` the
 * only modules that touch generated messages.
 */

import { types } from "node:util";

import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { type Duration, type Timestamp as WallTime, timestampDate, timestampFromDate } from "@bufbuild/protobuf/wkt";
import { deserialize, type Document, serialize, Timestamp } from "bson";

import { encode } from "./documents.js";
import { stagesText } from "./extended-json.js";
import type {
  Explanation,
  Feed,
  FullDocument,
  FullDocumentBeforeChange,
  OnHistoryLost,
  OnInvalidate,
  ReadPreference,
  ResolvedPosition,
  Start,
  SubscriptionInfo,
} from "./feeds.js";
import {
  type ExplainResponse,
  type OpenSchema,
  type ResolvePositionResponse,
  SubscribeRequestSchema,
} from "./gen/feedmux/v1/change_feed_pb.js";
import {
  type ClusterTime,
  type Feed as FeedMessage,
  FeedSchema,
  Format as FormatMessage,
  OnHistoryLost as OnHistoryLostMessage,
  OnInvalidate as OnInvalidateMessage,
  type SnapshotStatus as SnapshotStatusMessage,
  SnapshotStatus_State,
  type StartSchema,
} from "./gen/feedmux/v1/feed_pb.js";
import type { Subscription, SubscriptionSchema } from "./gen/feedmux/v1/subscriptions_pb.js";
import type { SnapshotStatus } from "./notices.js";
import { checkBoolean, checkInteger, checkNames, checkText, type Format, namesOf } from "./options.js";
import type { FeedPosition } from "./positions.js";
import type { Grant } from "./window.js";

/** A subscription's definition as the wire has it. */
export type SubscriptionInit = Exclude<MessageInitShape<typeof SubscriptionSchema>, { $typeName: string }>;
/** A start as the wire has it. */
export type StartInit = MessageInitShape<typeof StartSchema>;

const FORMATS: Record<Format, FormatMessage> = {
  bson: FormatMessage.BSON,
  extendedJsonRelaxed: FormatMessage.EXTENDED_JSON_RELAXED,
  extendedJsonCanonical: FormatMessage.EXTENDED_JSON_CANONICAL,
};
const ON_INVALIDATE: Record<OnInvalidate, OnInvalidateMessage> = {
  stop: OnInvalidateMessage.STOP,
  continue: OnInvalidateMessage.CONTINUE,
};
const ON_HISTORY_LOST: Record<OnHistoryLost, OnHistoryLostMessage> = {
  fail: OnHistoryLostMessage.FAIL,
  earliest: OnHistoryLostMessage.EARLIEST,
  snapshot: OnHistoryLostMessage.SNAPSHOT,
};

const FEED_NAMES = namesOf<Feed>({
  database: true,
  collection: true,
  pipeline: true,
  fullDocument: true,
  fullDocumentBeforeChange: true,
  showExpandedEvents: true,
  collation: true,
  comment: true,
  batchSize: true,
  maxAwaitTimeMs: true,
  readPreference: true,
  readConcern: true,
  matchCollectionUuidForUpdateLookup: true,
  extraOptions: true,
  source: true,
});

const INT32_MAX = 2 ** 31 - 1;

type Request = NonNullable<MessageInitShape<typeof SubscribeRequestSchema>["message"]>;

function requestBytes(message: Request): Uint8Array {
  return toBinary(SubscribeRequestSchema, create(SubscribeRequestSchema, { message }));
}

/** Asks for the end of the session. */
export const CLOSE = requestBytes({ case: "close", value: {} });

/** The first message of a stream. */
export function openBytes(open: MessageInitShape<typeof OpenSchema>): Uint8Array {
  return requestBytes({ case: "open", value: open });
}

/** More credit. */
export function creditBytes(grant: Grant): Uint8Array {
  return requestBytes({ case: "credit", value: credit(grant) });
}

/** An ack of everything up to a delivery sequence. */
export function ackBytes(sequence: number): Uint8Array {
  return requestBytes({ case: "ack", value: { deliverySequence: BigInt(sequence) } });
}

export function credit(grant: Grant): { events: bigint; bytes: bigint } {
  return { events: BigInt(grant.events), bytes: BigInt(grant.bytes) };
}

export function duration(milliseconds: number): { seconds: bigint; nanos: number } {
  const seconds = Math.floor(milliseconds / 1000);
  return { seconds: BigInt(seconds), nanos: Math.round((milliseconds - seconds * 1000) * 1e6) };
}

/** Throws RangeError for an unknown format. */
export function format(name: Format): FormatMessage {
  return known(FORMATS, name, "format");
}

/** What was last acked: a position where there is one, else the event's token. */
export function lastAcked(feedPosition: FeedPosition, epoch: bigint): MessageInitShape<typeof OpenSchema>["lastAcked"] {
  return feedPosition.position.length > 0
    ? { place: { case: "position", value: feedPosition.position }, epoch }
    : { place: { case: "resumeToken", value: feedPosition.token }, epoch };
}

/** A feed for the wire. Throws TypeError for what is no feed, or has a value that is not one of BSON's. */
export function feedMessage(feed: Feed, defaultSource: string): FeedMessage {
  checkNames(feed, FEED_NAMES, "a feed");
  for (const name of ["database", "collection"] as const) {
    // Nothing, as in a variable that was not set, would widen the feed to everybody's events.
    if (name in feed && (typeof feed[name] !== "string" || feed[name] === "")) {
      throw new TypeError(`a feed's ${name} is a name; leave it out for all of them`);
    }
  }
  for (const name of ["showExpandedEvents", "matchCollectionUuidForUpdateLookup"] as const) {
    if (feed[name] !== undefined) {
      checkBoolean(feed[name], `a feed's ${name}`);
    }
  }
  for (const name of ["batchSize", "maxAwaitTimeMs"] as const) {
    if (feed[name] !== undefined) {
      checkInteger(feed[name], 0, INT32_MAX, `a feed's ${name}`);
    }
  }
  for (const name of ["source", "fullDocument", "fullDocumentBeforeChange", "readPreference", "readConcern"] as const) {
    if (feed[name] !== undefined) {
      checkText(feed[name], `a feed's ${name}`);
    }
  }
  const extraOptions: unknown = feed.extraOptions ?? [];
  if (!Array.isArray(extraOptions) || !extraOptions.every((each) => typeof each === "string")) {
    throw new TypeError("a feed's extraOptions is an array of names"); // of a text, its letters would be sent
  }
  const { pipeline } = feed;
  if (pipeline !== undefined && typeof pipeline !== "string" && !Array.isArray(pipeline)) {
    throw new TypeError("a feed's pipeline is an array of stages, or the same as extended JSON");
  }
  return create(FeedSchema, {
    source: feed.source ?? defaultSource,
    database: feed.database ?? "",
    collection: feed.collection ?? "",
    ...(typeof pipeline === "string" && { pipeline: { notation: { case: "extendedJson", value: pipeline } } }),
    ...(Array.isArray(pipeline) &&
      pipeline.length > 0 && {
        pipeline: { notation: { case: "bson", value: encode(new Map([["pipeline", pipeline]]), "a feed") } },
      }),
    fullDocument: feed.fullDocument ?? "",
    fullDocumentBeforeChange: feed.fullDocumentBeforeChange ?? "",
    showExpandedEvents: feed.showExpandedEvents ?? false,
    ...(feed.collation !== undefined && { collation: encode(feed.collation, "a feed.collation") }),
    ...(feed.comment !== undefined && { comment: encode({ comment: feed.comment }, "a feed") }),
    batchSize: feed.batchSize ?? 0,
    maxAwaitTimeMs: feed.maxAwaitTimeMs ?? 0,
    readPreference: feed.readPreference ?? "",
    readConcern: feed.readConcern ?? "",
    matchCollectionUuidForUpdateLookup: feed.matchCollectionUuidForUpdateLookup ?? false,
    extraOptions: [...extraOptions],
  });
}

/** A start for the wire. Throws TypeError for what is none. */
export function startMessage(start: Start): StartInit {
  if (start === "earliest" || start === "latest" || start === "snapshot") {
    return { at: { case: start, value: {} } };
  }
  // Of two places, one would be ignored; and a position that was not found, null, would begin now.
  if (typeof start !== "object" || (start as unknown) === null || Object.keys(start).length !== 1) {
    throw notAStart();
  }
  if ("position" in start) {
    if (!types.isUint8Array(start.position)) {
      throw notAStart(); // undefined would begin now
    }
    return { at: { case: "position", value: start.position } };
  }
  if ("resumeAfter" in start) {
    return { at: { case: "resumeAfter", value: encode(start.resumeAfter, "resumeAfter") } };
  }
  if ("startAfter" in start) {
    return { at: { case: "startAfter", value: encode(start.startAfter, "startAfter") } };
  }
  if ("operationTime" in start) {
    const given: unknown = start.operationTime;
    if ((given as Timestamp | undefined)?._bsontype !== "Timestamp") {
      throw notAStart();
    }
    const { t, i } = start.operationTime;
    return { at: { case: "startAtOperationTime", value: { seconds: t, increment: i } } };
  }
  if (!(start.time instanceof Date) || Number.isNaN(start.time.getTime())) {
    throw notAStart();
  }
  const wholeSecond = new Date(Math.floor(start.time.getTime() / 1000) * 1000);
  return { at: { case: "time", value: timestampFromDate(wholeSecond) } };
}

/** Whether a start asks for a copy of the existing documents. */
export function isSnapshot(start: StartInit | undefined): boolean {
  return start?.at?.case === "snapshot";
}

function notAStart(): TypeError {
  return new TypeError(
    'a start is "earliest", "latest", "snapshot", { time: Date }, { operationTime }, { position }, { resumeAfter } or { startAfter }',
  );
}

/** A subscription's definition. Throws RangeError for an unknown policy. */
export function subscriptionInit(
  name: string,
  feed: FeedMessage | undefined,
  onInvalidate: OnInvalidate | undefined,
  onHistoryLost: OnHistoryLost | undefined,
): SubscriptionInit {
  return {
    name,
    ...(feed && { feed }),
    ...(onInvalidate !== undefined && { onInvalidate: known(ON_INVALIDATE, onInvalidate, "onInvalidate") }),
    ...(onHistoryLost !== undefined && { onHistoryLost: known(ON_HISTORY_LOST, onHistoryLost, "onHistoryLost") }),
  };
}

/** A subscription read back. Policies that this client does not know read as their defaults. */
export function subscriptionInfo(message: Subscription): SubscriptionInfo {
  return {
    name: message.name,
    feed: message.feed ? feedValue(message.feed) : {},
    onInvalidate: message.onInvalidate === OnInvalidateMessage.CONTINUE ? "continue" : "stop",
    onHistoryLost: historyLostValue(message.onHistoryLost),
    position: Buffer.from(message.position),
    clusterTime: clusterTimeValue(message.clusterTime),
    createTime: dateValue(message.createTime),
    updateTime: dateValue(message.updateTime),
    etag: message.etag,
    active: message.active,
    owner: message.owner,
    epoch: message.epoch,
    snapshot: message.snapshot?.state === SnapshotStatus_State.RUNNING ? snapshotValue(message.snapshot) : undefined,
  };
}

function historyLostValue(value: OnHistoryLostMessage): OnHistoryLost {
  switch (value) {
    case OnHistoryLostMessage.EARLIEST:
      return "earliest";
    case OnHistoryLostMessage.SNAPSHOT:
      return "snapshot";
    default:
      return "fail";
  }
}

/** How far a copy is. */
export function snapshotValue(status: SnapshotStatusMessage): SnapshotStatus {
  return {
    documents: Number(status.documents),
    bytes: Number(status.bytes),
    documentsEstimated: Number(status.documentsEstimated),
    remainingMs: status.remaining && milliseconds(status.remaining),
    readTime: clusterTimeValue(status.readTime),
    namespace: status.namespace,
    generation: Number(status.generation),
  };
}

/** A position read back. */
export function resolvedPosition(message: ResolvePositionResponse): ResolvedPosition {
  return {
    position: Buffer.from(message.position),
    clusterTime: clusterTimeValue(message.clusterTime),
    time: dateValue(message.time),
  };
}

/** An explanation read back. */
export function explanation(message: ExplainResponse): Explanation {
  const { refusal } = message;
  return {
    refusal: refusal && { status: refusal.status, reason: refusal.reason, message: refusal.message },
    pipeline: message.pipeline,
    streamKey: message.streamKey,
    streamOpen: message.streamOpen,
    images: message.images.map(({ database, collection, enabled, forGrants }) => ({
      database,
      collection,
      enabled,
      forGrants,
    })),
    oplogHeadroomMs: message.oplogHeadroom && milliseconds(message.oplogHeadroom),
    withheld: message.withheld.map(({ what, why }) => ({ what, why })),
    mayBeView: message.mayBeView,
    scopeMissing: message.scopeMissing,
    documentsEstimated: Number(message.documentsEstimated),
  };
}

/** A cluster time as bson's Timestamp; undefined for none and for zero, which says nothing. */
export function clusterTimeValue(message: ClusterTime | undefined): Timestamp | undefined {
  if (message === undefined || (message.seconds === 0 && message.increment === 0)) {
    return undefined;
  }
  return new Timestamp({ t: message.seconds, i: message.increment });
}

export function milliseconds(message: Duration): number {
  return Number(message.seconds) * 1000 + message.nanos / 1e6;
}

export function dateValue(message: WallTime | undefined): Date | undefined {
  return message && timestampDate(message);
}

function feedValue(message: FeedMessage): Feed {
  const { notation } = message.pipeline ?? {};
  return {
    source: message.source,
    ...(message.database !== "" && { database: message.database }),
    ...(message.collection !== "" && { collection: message.collection }),
    pipeline: notation?.case === "bson" ? stages(notation.value) : notation?.value,
    fullDocument: (message.fullDocument || undefined) as FullDocument | undefined,
    fullDocumentBeforeChange: (message.fullDocumentBeforeChange || undefined) as FullDocumentBeforeChange | undefined,
    showExpandedEvents: message.showExpandedEvents,
    collation: message.collation.length > 0 ? deserialize(message.collation) : undefined,
    comment: message.comment.length > 0 ? deserialize(message.comment)["comment"] : undefined,
    batchSize: message.batchSize,
    maxAwaitTimeMs: message.maxAwaitTimeMs,
    readPreference: (message.readPreference || undefined) as ReadPreference | undefined,
    readConcern: message.readConcern || undefined,
    matchCollectionUuidForUpdateLookup: message.matchCollectionUuidForUpdateLookup,
    extraOptions: message.extraOptions,
  };
}

/**
 * The stages of a stored feed, which the user may send again. Plain values lose what JavaScript has no type for, such as
 * the option x of a regular expression; where they do, the stages have bson's own types. Where those lose something too,
 * such as the order of names like "10" and "9", the stages are text.
 */
function stages(stored: Uint8Array): Document[] | string {
  for (const options of [{}, { promoteValues: false, bsonRegExp: true }]) {
    try {
      const decoded = deserialize(stored, options);
      if (Buffer.compare(serialize(decoded, { ignoreUndefined: false }), stored) === 0) {
        return decoded["pipeline"] as Document[];
      }
    } catch {
      // Not every regular expression is one of JavaScript's.
    }
  }
  return stagesText(stored);
}

function known<K extends string, V>(table: Record<K, V>, name: K, what: string): V {
  if (!Object.hasOwn(table, name)) {
    throw new RangeError(`${what} is one of ${Object.keys(table).join(", ")}`);
  }
  return table[name];
}
