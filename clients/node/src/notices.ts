/** What a session has to say besides events. Sessions hand notices out in order, between the events around them. */

import type { Timestamp } from "bson";

import type { FeedmuxError } from "./errors.js";

/** The server goes away within `deadlineMs`. The session reconnects by itself. */
export interface Draining {
  readonly kind: "draining";
  readonly deadlineMs: number;
  readonly position: Buffer;
}

/** The session begins behind events that were delivered before; they come again. */
export interface Rewound {
  readonly kind: "rewound";
  readonly beginsAt: Timestamp;
  readonly hadReached: Timestamp;
}

/**
 * Another session, or a seek, moved the stored position on while this session was away: what lies between is not handed out
 * here. The same places as positions too.
 */
export interface Skipped {
  readonly kind: "skipped";
  readonly hadReached: Timestamp;
  readonly beginsAt: Timestamp;
  readonly hadReachedPosition: Buffer;
  readonly beginsAtPosition: Buffer;
}

/** The position stays in MongoDB's oplog for `remainingMs` more at its present rate. */
export interface HistoryAtRisk {
  readonly kind: "historyAtRisk";
  readonly remainingMs: number;
}

/** Events between the two cluster times are lost. Only under `onHistoryLost: "earliest"`. */
export interface Gap {
  readonly kind: "gap";
  readonly after: Timestamp;
  readonly before: Timestamp;
  readonly reason: string;
}

/** `source` (MongoDB) or `state` (Redis) is away, or back. The server keeps trying. */
export interface Degraded {
  readonly kind: "degraded";
  readonly dependency: string;
  readonly away: boolean;
}

/** The client lost the server for `error` and tries again in `retryInMs`. */
export interface Disconnected {
  readonly kind: "disconnected";
  readonly error: FeedmuxError;
  readonly retryInMs: number;
}

/** Told apart by `kind`. */
export type Notice = Draining | Rewound | Skipped | HistoryAtRisk | Gap | Degraded | Disconnected;
