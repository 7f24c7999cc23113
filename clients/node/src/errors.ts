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

/** What went wrong; the root of all errors of this package. */
export class FeedmuxError extends Error {
  /** A name of `ErrorReason` without its prefix (`HISTORY_LOST`); empty where the error carried none. */
  readonly reason: string;
  /** The gRPC status name (`OUT_OF_RANGE`). */
  readonly status: string;
  /** The words alone; `message` has the reason or status before them. */
  readonly details: string;
  /** The facts that the reason's documentation names. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Milliseconds the server asked to wait, where it did. */
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

/** The request is wrong in itself; `reason` says how. */
export class InvalidArgumentError extends FeedmuxError {}

/** A position cannot be decoded, or belongs to another tenant, source or scope. */
export class PositionInvalidError extends InvalidArgumentError {}

/** MongoDB refused the pipeline or an option. Metadata: `code`, `code_name`, `labels`. */
export class OptionRefusedError extends InvalidArgumentError {}

/** No credentials, or none that the server knows. */
export class UnauthenticatedError extends FeedmuxError {}

/** The credentials do not cover this namespace or method. */
export class PermissionDeniedError extends FeedmuxError {}

/** There is no such thing. */
export class NotFoundError extends FeedmuxError {}

/** There is no such subscription, or it was deleted during the session. */
export class SubscriptionNotFoundError extends NotFoundError {}

/** A subscription of this name with other content exists. */
export class SubscriptionExistsError extends FeedmuxError {}

/** The request does not fit the present state; `reason` says how. */
export class FailedPreconditionError extends FeedmuxError {}

/** Another client holds the subscription. Open with `takeover: true` to replace it. Metadata: `owner`. */
export class SubscriptionBusyError extends FailedPreconditionError {}

/** The feed ended with an invalidate (drop, rename, dropDatabase). */
export class FeedInvalidatedError extends FailedPreconditionError {
  /** The last place of the session: what `{ position }` as a start takes to go on behind the invalidate. */
  position: Buffer = Buffer.alloc(0);
  /** MongoDB's document for it, as `{ startAfter }` takes it; undefined where none is known. */
  resumeToken: Document | undefined;
}

/** A place that cannot be read; `reason` says why. */
export class OutOfRangeError extends FeedmuxError {}

/** The position has left MongoDB's oplog. Metadata: `oldest_time` where it is known. */
export class HistoryLostError extends OutOfRangeError {}

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

/** A defect of the server; metadata: `correlation_id`. Or of this client, and then `cause` has it. */
export class InternalError extends FeedmuxError {}

/**
 * The server broke the protocol: a gap in the sequence, more than the credit, a message over the limit, fragments out of
 * order, lengths that do not add up, or an undecodable message.
 */
export class ProtocolError extends FeedmuxError {
  constructor(details: string, cause?: unknown) {
    super(details, { status: "INTERNAL", cause });
  }
}

/** The client or the session was used after it was closed. */
export class SessionClosedError extends FeedmuxError {
  constructor(details = "the session is closed") {
    super(details, { status: "CANCELLED" });
  }
}

type ErrorClass = new (details: string, facts?: ErrorFacts) => FeedmuxError;

/** Reasons with a class of their own. Any other reason, known or not, falls back to its status. */
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
