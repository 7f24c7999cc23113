/** Which errors a session survives, and how long it waits before it tries again. Pure: randomness is an argument. */

import { FencedError, ProtocolError, SessionClosedError, UnauthenticatedError, type FeedmuxError } from "./errors.js";

/** `reopen` resumes after the last acked event; `reopen at stored` begins at the current stored position. */
export type Step = "reopen" | "reopen at stored" | "raise";

const TRANSPORT = new Set(["UNAVAILABLE", "DEADLINE_EXCEEDED"]);
/** gRPC itself and proxies return these for a broken stream. The server always adds a reason. */
const TRANSPORT_WITHOUT_REASON = new Set(["INTERNAL", "UNKNOWN", "CANCELLED", "ABORTED"]);
const FENCED = new Map<string | undefined, Step>([
  ["SEEK", "reopen at stored"],
  ["UPDATE", "reopen"],
  ["LEASE", "reopen"],
]);

/**
 * What a session does about the error that ended its stream. `hasOtherCredentials`: the stream was open, and the next
 * one will be opened with a token asked for anew.
 */
export function nextStep(error: FeedmuxError, hasOtherCredentials = false): Step {
  if (error instanceof UnauthenticatedError) {
    return hasOtherCredentials ? "reopen" : "raise";
  }
  if (error instanceof ProtocolError || error instanceof SessionClosedError) {
    return "raise";
  }
  if (error instanceof FencedError) {
    return FENCED.get(error.metadata["cause"]) ?? "raise";
  }
  if (TRANSPORT.has(error.status) || error.reason === "GRANTS_CHANGED") {
    return "reopen";
  }
  if (TRANSPORT_WITHOUT_REASON.has(error.status) && error.reason === "") {
    return "reopen";
  }
  return error.status === "RESOURCE_EXHAUSTED" && error.retryAfterMs !== undefined ? "reopen" : "raise";
}

/** Exponential backoff with full jitter: a delay is anywhere between 0 and a bound that doubles. */
export class Backoff {
  readonly #firstMs: number;
  readonly #mostMs: number;
  readonly #random: () => number;
  #boundMs: number;

  /** `random` returns a number in [0, 1). */
  constructor(firstMs: number, mostMs: number, random: () => number) {
    this.#firstMs = firstMs;
    this.#mostMs = mostMs;
    this.#random = random;
    this.#boundMs = firstMs;
  }

  /** Milliseconds to wait now; never less than what the server asked for. */
  nextMs(atLeastMs = 0): number {
    const delayMs = atLeastMs + this.#random() * this.#boundMs;
    this.#boundMs = Math.min(this.#mostMs, this.#boundMs * 2);
    return delayMs;
  }

  /** The connection holds: begin small again. */
  reset(): void {
    this.#boundMs = this.#firstMs;
  }
}
