/** Which errors a session survives, and how long it waits before it tries again. Pure: randomness is an argument. */

import type { Event } from "./connection-states.js";
import { type FeedmuxError, ProtocolError, SessionClosedError } from "./errors.js";
import { LONGEST_TIMER_MS } from "./options.js";

/** `reopen` resumes after the last acked event; `reopen at stored` begins at the current stored position. */
export type Step = "reopen" | "reopen at stored" | "raise";

/** What the end of a stream is to the table of states, by the step that its error asks for. */
export const ENDINGS: Readonly<Record<Step, Event>> = { reopen: "LOST", "reopen at stored": "MOVED", raise: "FAILED" };

/** A step, and the errors that it is for. A field that is absent matches anything. */
interface Rule {
  readonly step: Step;
  readonly statuses?: readonly string[];
  readonly reason?: string;
  readonly causes?: readonly string[];
  /** Only errors with RetryInfo. */
  readonly retryInfo?: true;
  /** Only if the stream was open, and the next one will be opened with a token asked for again. */
  readonly newToken?: true;
  /** Only errors of the client itself: the server broke the protocol, or the client was closed. */
  readonly byClient?: true;
}

/** The first rule that matches an error decides. */
const RULES: readonly Rule[] = [
  { step: "raise", byClient: true },
  { step: "reopen", statuses: ["UNAUTHENTICATED"], newToken: true },
  { step: "reopen at stored", reason: "FENCED", causes: ["SEEK"] },
  { step: "reopen", reason: "FENCED", causes: ["UPDATE", "LEASE"] },
  { step: "raise", reason: "FENCED" },
  { step: "reopen", reason: "GRANTS_CHANGED" },
  { step: "reopen", statuses: ["UNAVAILABLE", "DEADLINE_EXCEEDED"] },
  // gRPC itself and proxies return these for a broken stream. The server always adds a reason.
  { step: "reopen", statuses: ["INTERNAL", "UNKNOWN", "CANCELLED", "ABORTED"], reason: "" },
  { step: "reopen", statuses: ["RESOURCE_EXHAUSTED"], retryInfo: true },
];

/**
 * What a session does about the error that ended its stream. `hasOtherCredentials`: the stream was open, and the next
 * one will be opened with a token asked for again.
 */
export function nextStep(error: FeedmuxError, hasOtherCredentials = false): Step {
  return RULES.find((rule) => matches(rule, error, hasOtherCredentials))?.step ?? "raise";
}

function matches(rule: Rule, error: FeedmuxError, newToken: boolean): boolean {
  return (
    (rule.statuses?.includes(error.status) ?? true) &&
    (rule.reason ?? error.reason) === error.reason &&
    (rule.causes?.includes(error.metadata["cause"] ?? "") ?? true) &&
    (rule.retryInfo === undefined || error.retryAfterMs !== undefined) &&
    (rule.newToken === undefined || newToken) &&
    (rule.byClient === undefined || error instanceof ProtocolError || error instanceof SessionClosedError)
  );
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

  /** Milliseconds to wait now; never less than what the server asked for, as far as a timer can wait. */
  nextMs(atLeastMs = 0): number {
    const delayMs = Math.min(LONGEST_TIMER_MS, atLeastMs + this.#random() * this.#boundMs);
    this.#boundMs = Math.min(this.#mostMs, this.#boundMs * 2);
    return delayMs;
  }

  /** The connection holds: begin small again. */
  reset(): void {
    this.#boundMs = this.#firstMs;
  }
}
