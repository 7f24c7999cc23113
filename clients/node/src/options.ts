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

/** The names of a session's options. */
export const SESSION_NAMES: readonly string[] = Object.keys(DEFAULTS);

const FORMATS = namesOf<Record<Format, unknown>>({
  bson: true,
  extendedJsonRelaxed: true,
  extendedJsonCanonical: true,
});
const BSON_NAMES = namesOf<DeserializeOptions>({
  useBigInt64: true,
  promoteLongs: true,
  promoteBuffers: true,
  promoteValues: true,
  fieldsAsRaw: true,
  bsonRegExp: true,
  allowObjectSmallerThanBufferSize: true,
  index: true,
  raw: true,
  validation: true,
});

const BSON_NOT_BOOLEAN = ["fieldsAsRaw", "index", "validation"];

/** What a timer of JavaScript can wait at most. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/**
 * The first of `chosen` that says something decides, then the defaults. Throws RangeError for a value that cannot be,
 * TypeError for an unknown name and for what is no number, or no integer where only those can be.
 */
export function sessionOptions(...chosen: readonly (SomeSessionOptions | undefined)[]): SessionOptions {
  const options = { ...DEFAULTS };
  for (const some of chosen.toReversed()) {
    checkNames(some ?? {}, SESSION_NAMES, "a session's options");
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
  if (!FORMATS.includes(options.format)) {
    throw new RangeError(`format is one of ${FORMATS.join(", ")}`);
  }
  checkNames(options.bson, BSON_NAMES, "bson");
  for (const [name, value] of Object.entries(options.bson).filter(isGiven)) {
    if (!BSON_NOT_BOOLEAN.includes(name)) {
      checkBoolean(value, `bson's ${name}`);
    }
  }
  return options;
}

/** The names of a type with options, without those of another one: the compiler rejects a list that is not complete. */
export function namesOf<T, Without = unknown>(names: Record<Exclude<keyof T, keyof Without>, true>): readonly string[] {
  return Object.keys(names);
}

/** Throws TypeError for what is no object with some of these names, for example a misspelt one, which would be ignored. */
export function checkNames(given: unknown, names: readonly string[], what: string): void {
  if (typeof given !== "object" || given === null) {
    throw new TypeError(`${what}: an object with ${names.join(", ")}, not ${typeName(given)}`);
  }
  const unknown = Object.keys(given).find((name) => !names.includes(name));
  if (unknown !== undefined) {
    throw new TypeError(`${what}: there is no ${JSON.stringify(unknown)}; there are ${names.join(", ")}`);
  }
}

function isGiven([, value]: [string, unknown]): boolean {
  return value !== undefined;
}

/** Throws TypeError for what is no integer, RangeError for one that is not between the two. */
export function checkInteger(value: unknown, least: number, most: number, name: string): void {
  check(value, least, most, name);
  if (!Number.isInteger(value)) {
    throw new TypeError(`${name} is an integer, not ${String(value)}`);
  }
}

/**
 * Throws TypeError for what is no number, RangeError for one that is not between the two: a text would be compared as a
 * number, and then added as a text.
 */
export function check(value: unknown, least: number, most: number, name: string): void {
  if (typeof value !== "number") {
    throw new TypeError(`${name} is a number, not ${typeName(value)}`);
  }
  if (!(value >= least && value <= most)) {
    throw new RangeError(`${name} is ${String(least)} to ${String(most)}`);
  }
}

/** Throws TypeError for anything but a text: another value would fail when it is sent, or be sent as none. */
export function checkText(value: unknown, name: string): void {
  if (typeof value !== "string") {
    throw new TypeError(`${name} is a text, not ${typeName(value)}`);
  }
}

/** Throws TypeError for anything but a boolean: "false" would be true. */
export function checkBoolean(value: unknown, name: string): void {
  if (typeof value !== "boolean") {
    throw new TypeError(`${name} is true or false`);
  }
}

function typeName(value: unknown): string {
  return value === null ? "null" : typeof value;
}
