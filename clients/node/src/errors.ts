/**
 * The client's error tree: one table gives each reason, and each status without one, its class.
 *
 * Every error that a server, the network or a violated protocol causes is a `FeedmuxError`. Nobody decides by message
 * text. `recovery` decides which of them a session survives; `status` makes them from gRPC.
 */

import type { Document } from "bson";

/** What an error carries besides its text. */
export interface ErrorFacts {
  readonly reason?: string;
  readonly status?: string;
  readonly metadata?: Readonly<Record<string, string>>;
  readonly retryAfterMs?: number | undefined;
  readonly cause?: unknown;
}

/** An error that a server, the network or a protocol violation caused; the root of all errors of this package. */
export class FeedmuxError extends Error {
  /** The protocol's `ErrorReason` without its prefix (`HISTORY_LOST`); empty if the error has no reason. */
  readonly reason: string;
  /** The gRPC status name (`OUT_OF_RANGE`). */
  readonly status: string;
  /** The words alone; `message` has the reason or status before them. */
  readonly details: string;
  /** The facts that the reason's documentation names. */
  readonly metadata: Readonly<Record<string, string>>;
  /** How many milliseconds the server asked the client to wait; undefined if it did not ask. */
  readonly retryAfterMs: number | undefined;

  constructor(details: string, facts: ErrorFacts = {}) {
    const reason = facts.reason ?? "";
    const status = facts.status ?? "UNKNOWN";
    super(`${reason || status}: ${details}`, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.name = new.target.name;
    this.reason = reason;
    this.status = status;
    this.details = details;
    this.metadata = facts.metadata ?? {};
    this.retryAfterMs = facts.retryAfterMs;
  }
}

/** The request itself is invalid; `reason` says how. */
export class InvalidArgumentError extends FeedmuxError {}

/** A position cannot be decoded, or belongs to another tenant, source or scope. */
export class PositionInvalidError extends InvalidArgumentError {}

/** MongoDB rejected the pipeline or an option. Metadata: `code`, `code_name`, `labels`. */
export class OptionRefusedError extends InvalidArgumentError {}

/** The call has no credentials, or the server does not know them. */
export class UnauthenticatedError extends FeedmuxError {}

/** The credentials do not cover this namespace or method. */
export class PermissionDeniedError extends FeedmuxError {}

/** The requested resource does not exist. */
export class NotFoundError extends FeedmuxError {}

/** The subscription does not exist, or it was deleted during the session. */
export class SubscriptionNotFoundError extends NotFoundError {}

/** A subscription with this name and different content exists. */
export class SubscriptionExistsError extends FeedmuxError {}

/** The request does not fit the current state; `reason` says how. */
export class FailedPreconditionError extends FeedmuxError {}

/**
 * Another client has a session of the subscription. Open with `takeover: true` to replace that session. Metadata:
 * `owner`.
 */
export class SubscriptionBusyError extends FailedPreconditionError {}

/** The feed ended with an invalidate event (drop, rename, dropDatabase). */
export class FeedInvalidatedError extends FailedPreconditionError {
  /** The last position of the session. Pass it as `{ position }` to resume after the invalidate event. */
  position: Buffer = Buffer.alloc(0);
  /** MongoDB's token for the same position, for `{ startAfter }`. Undefined if no token is known. */
  resumeToken: Document | undefined;
}

/** The position cannot be read; `reason` says why. */
export class OutOfRangeError extends FeedmuxError {}

/** The position is no longer in MongoDB's oplog. Metadata: `oldest_time` if it is known. */
export class HistoryLostError extends OutOfRangeError {}

/**
 * MongoDB was restored from an older copy, or replaced, and does not have the history of the position: seek to another
 * one. Metadata: `last_common_time`, up to which the two histories are equal, if it is known.
 */
export class TimelineForkedError extends OutOfRangeError {}

/** The server ended the session. */
export class AbortedError extends FeedmuxError {}

/** The session lost its subscription. Metadata: `cause`. */
export class FencedError extends AbortedError {}

/** An operator ended the session. It may be opened again. */
export class EndedByOperatorError extends AbortedError {}

/** A quota of the tenant or a limit of the server is reached. */
export class QuotaExceededError extends FeedmuxError {}

/** The server, or what it depends on, cannot be reached now. */
export class UnavailableError extends FeedmuxError {
  constructor(details: string, facts: ErrorFacts = {}) {
    super(details, { status: "UNAVAILABLE", ...facts });
  }
}

/**
 * A defect in the server; metadata: `correlation_id`. Or a defect in this client; then `cause` is the original error.
 */
export class InternalError extends FeedmuxError {}

/**
 * The server violated the protocol: a gap in the sequence, more than the credit, a message over the limit, fragments
 * out of order, lengths that do not add up, or an undecodable message.
 */
export class ProtocolError extends FeedmuxError {
  constructor(details: string, cause?: unknown) {
    super(details, { status: "INTERNAL", cause });
  }
}

/** The server is older than the start `snapshot`, and has begun at the present instead. */
export class SnapshotUnsupportedError extends FeedmuxError {
  constructor(what: string) {
    super(`the server does not know the start "snapshot", and ${what}. Upgrade all replicas of the server first`, {
      status: "UNIMPLEMENTED",
    });
  }
}

/** The client or the session was used after it was closed. */
export class SessionClosedError extends FeedmuxError {
  constructor(details = "the session is closed") {
    super(details, { status: "CANCELLED" });
  }
}

type ErrorClass = new (details: string, facts?: ErrorFacts) => FeedmuxError;

/** Maps each reason that has its own class. An error with any other reason gets its class from its status. */
const BY_REASON: ReadonlyMap<string, ErrorClass> = new Map<string, ErrorClass>([
  ["POSITION_INVALID", PositionInvalidError],
  ["POSITION_FOREIGN", PositionInvalidError],
  ["OPTION_REFUSED", OptionRefusedError],
  ["UNAUTHENTICATED", UnauthenticatedError],
  ["NAMESPACE_DENIED", PermissionDeniedError],
  ["SOURCE_UNAUTHORIZED", PermissionDeniedError],
  ["METHOD_DENIED", PermissionDeniedError],
  ["SUBSCRIPTION_NOT_FOUND", SubscriptionNotFoundError],
  ["SUBSCRIPTION_EXISTS", SubscriptionExistsError],
  ["HISTORY_LOST", HistoryLostError],
  ["TIMELINE_FORKED", TimelineForkedError],
  ["FEED_INVALIDATED", FeedInvalidatedError],
  ["SUBSCRIPTION_BUSY", SubscriptionBusyError],
  ["FENCED", FencedError],
  ["ENDED_BY_OPERATOR", EndedByOperatorError],
  ["QUOTA_EXCEEDED", QuotaExceededError],
  ["DRAINING", UnavailableError],
  ["SOURCE_UNAVAILABLE", UnavailableError],
  ["STATE_UNAVAILABLE", UnavailableError],
  ["INTERNAL", InternalError],
]);

const BY_STATUS: ReadonlyMap<string, ErrorClass> = new Map<string, ErrorClass>([
  ["INVALID_ARGUMENT", InvalidArgumentError],
  ["UNAUTHENTICATED", UnauthenticatedError],
  ["PERMISSION_DENIED", PermissionDeniedError],
  ["NOT_FOUND", NotFoundError],
  ["ALREADY_EXISTS", SubscriptionExistsError],
  ["FAILED_PRECONDITION", FailedPreconditionError],
  ["OUT_OF_RANGE", OutOfRangeError],
  ["ABORTED", AbortedError],
  ["RESOURCE_EXHAUSTED", QuotaExceededError],
  ["UNAVAILABLE", UnavailableError],
  ["DEADLINE_EXCEEDED", UnavailableError],
  ["INTERNAL", InternalError],
]);

/** The error for a gRPC status name and, where there was an ErrorInfo, its reason and metadata. */
export function makeError(status: string, details: string, facts: Omit<ErrorFacts, "status"> = {}): FeedmuxError {
  let kind = BY_REASON.get(facts.reason ?? "") ?? BY_STATUS.get(status) ?? FeedmuxError;
  if (kind === FencedError && facts.metadata?.["cause"] === "DELETE") {
    kind = SubscriptionNotFoundError;
  }
  return new kind(details, { ...facts, status });
}
