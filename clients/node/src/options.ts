/** The client's tunables, each with its trade-off. */

import type { DeserializeOptions } from "bson";

/** How events are encoded on the wire. `bson` is the fastest format. */
export type Format = "bson" | "extendedJsonRelaxed" | "extendedJsonCanonical";

/** How a session behaves. */
export interface SessionOptions {
  /**
   * With `windowBytes`, limits the events that wait in the client: a larger window smooths the flow, a smaller one
   * saves memory. The client refills it when the program has taken a quarter of it. Default 16,384.
   */
  readonly windowEvents: number;
  /**
   * Also limits the unacked events that the client retains whole; beyond that, it retains only their resume tokens.
   * Default 8 MiB.
   */
  readonly windowBytes: number;
  /**
   * Bytes of the largest message: 64 KiB to 64 MiB. Larger events arrive in fragments, and the client joins them.
   * Default 1 MiB.
   */
  readonly messageBytesMax: number;
  /**
   * How often an idle server sends a message, 1 to 60 s; after three silent intervals, the client reconnects. Default
   * 10 s.
   */
  readonly heartbeatMs: number;
  /**
   * How long an ack waits at most until it is sent; a longer interval means fewer messages, and more repeats after a
   * crash. Default 100.
   */
  readonly ackIntervalMs: number;
  /** How long `open()` keeps trying until the server has opened the session. Default 30 s. */
  readonly openTimeoutMs: number;
  /**
   * How long a session that was open keeps trying to reconnect, from the loss of the stream; by default, there is no
   * limit.
   */
  readonly reconnectTimeoutMs: number;
  /** How long `close()` waits until the acks are confirmed. Default 5 s. */
  readonly closeTimeoutMs: number;
  /** Delays between attempts are random between 0 and a bound that doubles from this one, by default 200 … */
  readonly backoffFirstMs: number;
  /** … to this one, by default 10 s. */
  readonly backoffMostMs: number;
  /** Default `bson`. */
  readonly format: Format;
  /**
   * How BSON becomes JavaScript, as the `bson` package takes it. By default int64 comes as a number where that is exact
   * and as a `Long` where it is not; `useBigInt64` gives bigints.
   */
  readonly bson: DeserializeOptions;
}

/** Some of them; the rest is the client's or the default. */
export type SomeSessionOptions = { readonly [Name in keyof SessionOptions]?: SessionOptions[Name] | undefined };

const DEFAULTS: SessionOptions = {
  windowEvents: 16_384,
  windowBytes: 8 * 1024 * 1024,
  messageBytesMax: 1024 * 1024,
  heartbeatMs: 10_000,
  ackIntervalMs: 100,
  openTimeoutMs: 30_000,
  reconnectTimeoutMs: Infinity,
  closeTimeoutMs: 5_000,
  backoffFirstMs: 200,
  backoffMostMs: 10_000,
  format: "bson",
  bson: {},
};

/** What a timer of JavaScript can wait at most. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** The first of `chosen` that says something decides, then the defaults. Throws RangeError, TypeError for an unknown name. */
export function sessionOptions(...chosen: readonly (SomeSessionOptions | undefined)[]): SessionOptions {
  const options = { ...DEFAULTS };
  for (const some of chosen.toReversed()) {
    checkNames(some ?? {}, Object.keys(DEFAULTS), "a session's options");
    Object.assign(options, Object.fromEntries(Object.entries(some ?? {}).filter(isGiven)));
  }
  checkInteger(options.windowEvents, 1, 2 ** 31 - 1, "windowEvents");
  checkInteger(options.windowBytes, 1, 2 ** 40, "windowBytes");
  checkInteger(options.messageBytesMax, 64 * 1024, 64 * 1024 * 1024, "messageBytesMax");
  check(options.heartbeatMs, 1000, 60_000, "heartbeatMs");
  check(options.ackIntervalMs, 0, LONGEST_TIMER_MS, "ackIntervalMs");
  check(options.closeTimeoutMs, 0, LONGEST_TIMER_MS, "closeTimeoutMs");
  check(options.openTimeoutMs, 0, Infinity, "openTimeoutMs");
  check(options.reconnectTimeoutMs, 0, Infinity, "reconnectTimeoutMs");
  check(options.backoffFirstMs, 0, LONGEST_TIMER_MS, "backoffFirstMs");
  check(options.backoffMostMs, 0, LONGEST_TIMER_MS, "backoffMostMs");
  return options;
}

/** Throws TypeError for what is no object with some of these names, for example a misspelt one, which would be ignored. */
export function checkNames(given: unknown, names: readonly string[], what: string): void {
  if (typeof given !== "object" || given === null) {
    throw new TypeError(`${what}: an object with ${names.join(", ")}, not ${typeof given}`);
  }
  const unknown = Object.keys(given).find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new TypeError(`${what}: there is no ${JSON.stringify(unknown)}; there are ${names.join(", ")}`);
  }
}

function isGiven([, value]: [string, unknown]): boolean {
  return value !== undefined;
}

function checkInteger(value: number, least: number, most: number, name: string): void {
  check(value, least, most, name);
  if (!Number.isInteger(value)) {
    throw new RangeError(`${name} is an integer`);
  }
}

/** Throws RangeError for anything but a number between the two: a text would be compared as one, and then added as a text. */
export function check(value: unknown, least: number, most: number, name: string): void {
  if (!(typeof value === "number" && value >= least && value <= most)) {
    throw new RangeError(`${name} is ${String(least)} to ${String(most)}`);
  }
}
