/** What a session reports besides events. Sessions hand notices out in order, between the events around them. */

import type { Timestamp } from "bson";

import type { FeedmuxError } from "./errors.js";

/** The server is about to end the stream, within `deadlineMs`. The session reconnects automatically. */
export interface Draining {
  readonly kind: "draining";
  readonly deadlineMs: number;
  readonly position: Buffer;
}

/** The session begins before events that were delivered earlier; these events come again. */
export interface Rewound {
  readonly kind: "rewound";
  readonly beginsAt: Timestamp;
  readonly hadReached: Timestamp;
}

/**
 * Another session, or a seek, moved the stored position forward: this session does not deliver the events in between.
 * `hadReachedPosition` and `beginsAtPosition` are the positions at these two times. The first is empty if the session
 * was open when a seek moved it, and the last acked event was in the middle of a batch.
 */
export interface Skipped {
  readonly kind: "skipped";
  readonly hadReached: Timestamp;
  readonly beginsAt: Timestamp;
  readonly hadReachedPosition: Buffer;
  readonly beginsAtPosition: Buffer;
}

/** The position stays in MongoDB's oplog for `remainingMs` more at the oplog's current rate. */
export interface HistoryAtRisk {
  readonly kind: "historyAtRisk";
  readonly remainingMs: number;
}

/**
 * Events between the two cluster times are lost. After a restore of MongoDB (`TIMELINE_FORKED`), the second is earlier:
 * all available events follow with `onHistoryLost: "earliest"`, and the existing documents with `"snapshot"`.
 */
export interface Gap {
  readonly kind: "gap";
  readonly after: Timestamp;
  readonly before: Timestamp;
  readonly reason: string;
}

/**
 * A dependency of the server, `source` (MongoDB) or `state` (Redis), is unavailable, or available again. The server
 * keeps trying.
 */
export interface Degraded {
  readonly kind: "degraded";
  readonly dependency: string;
  readonly unavailable: boolean;
}

/** The server sends nothing more until some of these events are acked. */
export interface Unacknowledged {
  readonly kind: "unacknowledged";
  readonly events: number;
}

/** Documents of a copy are still to come. */
export interface SnapshotProgress extends SnapshotStatus {
  readonly kind: "snapshotProgress";
}

/** How far a copy of existing documents is. A number that the server does not know is 0. */
export interface SnapshotStatus {
  /** The number of documents copied so far. After an interruption, some may count twice. */
  readonly documents: number;
  /** Their size. */
  readonly bytes: number;
  /** MongoDB's estimate of the number of documents in what is copied. */
  readonly documentsEstimated: number;
  /** The time left at the present rate; undefined where it is not known. */
  readonly remainingMs: number | undefined;
  /** The cluster time as of which the documents were read; undefined where it is not known. */
  readonly readTime: Timestamp | undefined;
  /** The collection that is being copied; of several, before the first and after the last one the feed's scope. */
  readonly namespace: string;
  /** The number of the copy: see `SnapshotComplete`. 0 where the server does not say it. */
  readonly generation: number;
}

/**
 * The copy of existing documents is complete: every event after this is a change. A program that keeps what it has
 * deletes now what it has applied with a lower `generation`. After an interruption the notice may come again, until an
 * event after it is acked.
 */
export interface SnapshotComplete {
  readonly kind: "snapshotComplete";
  /** The number of documents of the copy. After an interruption, some may count twice. */
  readonly documents: number;
  /** Their size; 0 where the server does not know it. */
  readonly bytes: number;
  /** The cluster time as of which the last documents were read; undefined where it is not known. */
  readonly readTime: Timestamp | undefined;
  /** The number of the copy. */
  readonly generation: number;
}

/** Comes from the client: it lost the connection because of `error` and tries again in `retryInMs`. */
export interface Disconnected {
  readonly kind: "disconnected";
  readonly error: FeedmuxError;
  readonly retryInMs: number;
}

/** Distinguish notices by `kind`. */
export type Notice =
  | Draining
  | Rewound
  | Skipped
  | HistoryAtRisk
  | Gap
  | Degraded
  | Unacknowledged
  | SnapshotProgress
  | SnapshotComplete
  | Disconnected;

/**
 * What is equal for notices of which a newer one replaces an unread one, with no event in between: a session that nobody
 * reads would collect them for as long as an outage lasts. Undefined where each of them counts.
 */
export function topic(notice: Notice): string | undefined {
  switch (notice.kind) {
    case "disconnected":
    case "draining":
    case "historyAtRisk":
    case "unacknowledged":
      return notice.kind;
    case "degraded":
      return `${notice.kind} ${notice.dependency} ${String(notice.unavailable)}`;
    default:
      return undefined;
  }
}
