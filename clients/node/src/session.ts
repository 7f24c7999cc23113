/** The user's side of a session: iterate, ack, close. Neighbours: the connection below, the client that opens it above. */

import type { Document, Timestamp } from "bson";

import { type Batch, ChangeEvent } from "./batches.js";
import { checkTexts } from "./documents.js";
import { SessionClosedError } from "./errors.js";
import type { SessionBuffer, Item } from "./session-buffer.js";
import type { Transport } from "./transport.js";
import type { Notice, Skipped, SnapshotStatus } from "./notices.js";
import { check, checkNames, LONGEST_TIMER_MS, namesOf, type SessionOptions } from "./options.js";
import type { FeedPosition } from "./positions.js";
import { type Opening, type Reached, Connection } from "./connection.js";

/** How long a loop that always finds the next event at hand may keep the event loop from the network and timers. */
const TURN_MS = 10;
/** Events between two looks at the clock. */
const LOOK_EVERY = 16;

/** Is awaited before what follows the notice is handed out. */
export type OnNotice = (notice: Notice) => unknown;

/** What bounds one wait. The session lives on and loses nothing: the next wait gets what this one did not. */
export interface WaitOptions {
  /** Rejects the wait with its reason; `AbortSignal.timeout(…)` makes a deadline of it. */
  readonly signal?: AbortSignal | undefined;
}

/** What bounds a close. */
export interface CloseOptions {
  /** By default the session's `closeTimeoutMs`. */
  readonly timeoutMs?: number;
}

const WAIT_NAMES = namesOf<WaitOptions>({ signal: true });
const CLOSE_NAMES = namesOf<CloseOptions>({ timeoutMs: true });

/** Ends the call of a session that was never closed and is no longer referenced. */
const abandoned = new FinalizationRegistry<Connection>((connection) => {
  connection.cancel(undefined);
});

/**
 * Events of a durable subscription or of a feed, for `for await`. Made by `open()`; `await using` closes it.
 *
 * If you leave a loop, a new loop continues where the old one stopped; `next()`, loops and `batches()` share one
 * position. `onNotice` is called with each notice, in order with the events, and awaited by the call that takes the
 * events around it, which rejects with its error. Without it, notices become process warnings, but for those of a copy's
 * progress.
 */
export class Session<T extends Document = Document> implements AsyncIterable<ChangeEvent<T>>, AsyncDisposable {
  readonly #connection: Connection;
  readonly #buffer: SessionBuffer;
  readonly #options: SessionOptions;
  readonly #onNotice: OnNotice;
  #batch: Batch<T> | undefined;
  /** Within the batch, of the event to be handed out next. */
  #index = 0;
  /** The ordinal handed out last. */
  #handed = 0;
  #openedAt: Reached;
  #progress: Reached;
  #looks = 0;
  #turnMs = 0;
  #overdue = false;
  #isClosedByUser = false;

  private constructor(connection: Connection, options: SessionOptions, onNotice: OnNotice | undefined) {
    this.#connection = connection;
    this.#buffer = connection.buffer;
    this.#openedAt = this.#progress = connection.openedAt;
    this.#options = options;
    this.#onNotice = onNotice ?? warn;
  }

  /** @internal Resolves when the server has opened the session. Rejects with FeedmuxError, or the signal's reason. */
  static async open<T extends Document>(
    transport: Transport,
    opening: Opening,
    options: SessionOptions,
    onNotice: OnNotice | undefined,
    signal: AbortSignal | undefined,
    connections: Set<Connection>,
  ): Promise<Session<T>> {
    signal?.throwIfAborted();
    checkTexts(opening, "open");
    const connection = new Connection(transport, opening, options);
    connections.add(connection);
    const abort = (): void => {
      connection.cancel(signal?.reason as Error);
    };
    signal?.addEventListener("abort", abort);
    void connection.done.then(() => {
      connections.delete(connection);
      signal?.removeEventListener("abort", abort);
    });
    await connection.opened;
    const session = new Session<T>(connection, options, onNotice);
    abandoned.register(session, connection, session);
    return session;
  }

  /** Events one by one. Leaving the loop leaves the session open. Throws the error that ended the session. */
  [Symbol.asyncIterator](): AsyncIterator<ChangeEvent<T>, undefined> {
    return {
      next: () => {
        const event = this.#isOverdue() || this.#connection.isClosing() ? undefined : this.#take();
        return event !== undefined
          ? Promise.resolve({ done: false, value: event })
          : this.#next(undefined).then((value) =>
              value === undefined ? { done: true, value } : { done: false, value },
            );
      },
      return: () => Promise.resolve({ done: true, value: undefined }),
    };
  }

  /** The next event; waits for it. Undefined after `close()`. Throws the error that ended the session. */
  async next(options: WaitOptions = {}): Promise<ChangeEvent<T> | undefined> {
    checkNames(options, WAIT_NAMES, "the options of next()");
    return await this.#next(options.signal);
  }

  /** Returns the next event if it has already arrived, otherwise undefined. Throws as `next` does. */
  async tryNext(): Promise<ChangeEvent<T> | undefined> {
    await this.#turn();
    while (!this.#isOver()) {
      const event = this.#take();
      const item = event === undefined ? this.#receive() : undefined;
      if (item === undefined) {
        return event;
      }
      await this.#told(item);
    }
    return undefined;
  }

  /** Batches as they arrive, for bulk work: `for await (const batch of session.batches()) { …; session.ack(batch); }`. */
  async *batches(options: WaitOptions = {}): AsyncGenerator<Batch<T>, undefined> {
    checkNames(options, WAIT_NAMES, "the options of batches()");
    const { signal } = options;
    while (!this.#isOver()) {
      const rest = this.#rest();
      if (rest !== undefined) {
        yield rest;
        await this.#turn();
      } else {
        const wait = this.#advance(signal);
        if (wait !== undefined) {
          await wait;
        }
      }
    }
    return undefined;
  }

  /**
   * Says that everything up to and including this event or batch has been processed; without argument, everything
   * handed out. It is cumulative and cheap: the client sends acks together, after `ackIntervalMs` at most. On an inline
   * feed, it stores nothing. Throws TypeError if the event belongs to another session, or is undefined, and
   * SessionClosedError once `close()` of the session or its client has returned: until then, acks are accepted.
   */
  ack(...given: [] | [ChangeEvent<T> | Batch<T>]): void {
    if (given.length === 0) {
      this.#connection.ack(this.#handed);
      return;
    }
    const what = given[0] as ChangeEvent<T> | Batch<T> | null | undefined;
    if (what == null) {
      // A variable without an event does not mean everything: that would ack what is in progress.
      throw new TypeError("an event or a batch is missing: call ack() for everything handed out");
    }
    const [batch, ordinal] = what instanceof ChangeEvent ? [what.batch, what.sequence] : [what, what.lastSequence];
    if (batch.owner !== this.#connection) {
      throw new TypeError("the event or batch belongs to another session");
    }
    this.#connection.ack(ordinal);
  }

  /** The position of `progress`: store it unchanged. In the middle of a batch, `resumeToken` is more exact. */
  get position(): Buffer {
    return this.progress.position;
  }

  /** MongoDB's resume token after the last event handed out or, at the end of a batch, that of `progress`. */
  get resumeToken(): Document | undefined {
    const batch = this.#batch;
    const progress = this.progress;
    const wasMoved = this.#handed <= this.#openedAt.after;
    // The server omits a long token, which only the event itself has.
    if (
      batch !== undefined &&
      !wasMoved &&
      this.#index > 0 &&
      (this.#index < batch.length || progress.token.length === 0)
    ) {
      return new ChangeEvent(batch, this.#index - 1).resumeToken;
    }
    return progress.resumeToken;
  }

  /**
   * The last position up to which everything has been handed out, or where the session began or a seek moved it. It
   * advances even without events, so that the position of a feed that seldom matches stays in the oplog.
   */
  get progress(): FeedPosition {
    this.#done();
    const { after, feedPosition } = this.#connection.latest;
    // Not after the end of a copy that was not handed out: a program that stores that position would miss the end.
    if (
      after <= Math.max(this.#handed, this.#openedAt.after) &&
      feedPosition.position.length > 0 &&
      !this.#buffer.owesCompletion
    ) {
      this.#progress = { after, feedPosition };
    }
    return this.#progress.feedPosition;
  }

  /** The cluster time of `progress`. */
  get clusterTime(): Timestamp | undefined {
    return this.progress.clusterTime;
  }

  /** The stored position as last confirmed by the server; empty before the first confirmation. */
  get committed(): Buffer {
    return this.#connection.committed;
  }

  /** Grows with each stream of the subscription; 0 on inline feeds. */
  get epoch(): bigint {
    return this.#connection.epoch;
  }

  /**
   * How far the copy is, by the last notice, while documents are still to come: the session began with the start
   * `snapshot`, or at a position of such a copy, and the notice `snapshotComplete` has not come. Otherwise undefined.
   */
  get copying(): SnapshotStatus | undefined {
    return this.#connection.copying;
  }

  /** Whether the session or its client was closed, or everything before the error that ended it has been handed out. */
  get closed(): boolean {
    const isDone = this.#buffer.ended !== undefined && this.#buffer.isEmpty && this.#current() === undefined;
    return this.#connection.isClosing() || isDone;
  }

  /**
   * Stops delivery, sends the acks and waits until they are confirmed, at most `timeoutMs` (5 s). If the acks could not
   * be confirmed, the next session repeats events, but none is lost; a process warning says so. Closing again does
   * nothing.
   */
  async close(options: CloseOptions = {}): Promise<void> {
    checkNames(options, CLOSE_NAMES, "the options of close()");
    const { timeoutMs = this.#options.closeTimeoutMs } = options;
    check(timeoutMs, 0, Infinity, "timeoutMs");
    abandoned.unregister(this);
    this.#isClosedByUser = true;
    await closeConnection(this.#connection, timeoutMs);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #next(signal: AbortSignal | undefined): Promise<ChangeEvent<T> | undefined> {
    if (this.#isOverdue()) {
      await this.#turn();
    }
    while (!this.#isOver()) {
      const event = this.#take();
      if (event !== undefined) {
        return event;
      }
      const wait = this.#advance(signal);
      if (wait !== undefined) {
        await wait; // only then: of several calls that wait, the first gets the first event
      }
    }
    return undefined;
  }

  /** Takes the next item. Returns what to wait for, if there is none, or if it is a notice. */
  #advance(signal: AbortSignal | undefined): Promise<void> | undefined {
    const item = this.#receive();
    return item === undefined ? this.#buffer.arrival(signal) : this.#told(item);
  }

  #told(item: Item): Promise<void> | undefined {
    return "notice" in item ? Promise.resolve(this.#onNotice(item.notice)).then(() => undefined) : undefined;
  }

  /** Whether the session was closed. Throws the reason for which it was cancelled, or that its client was closed. */
  #isOver(): boolean {
    if (!this.#connection.isClosing()) {
      return false;
    }
    const error = this.#buffer.ended?.error;
    if (error !== undefined && !(this.#isClosedByUser && error instanceof SessionClosedError)) {
      throw error;
    }
    return true;
  }

  /** The current batch, if it has events that are still to be handed out. */
  #current(): Batch<T> | undefined {
    const batch = this.#batch;
    const isOver = batch === undefined || this.#index >= batch.length;
    return isOver || batch.lastSequence <= this.#connection.withdrawn ? undefined : batch;
  }

  /** An event of the current batch. */
  #take(): ChangeEvent<T> | undefined {
    const batch = this.#current();
    if (batch === undefined) {
      return undefined;
    }
    const event = new ChangeEvent(batch, this.#index++);
    this.#handed = event.sequence;
    return event;
  }

  /** The events of the current batch that the loop over events has left, for a caller that continues by batches. */
  #rest(): Batch<T> | undefined {
    const batch = this.#current();
    if (batch === undefined) {
      return undefined;
    }
    const rest = this.#index > 0 ? batch.part(this.#index, batch.length) : batch;
    this.#batch = rest;
    this.#index = rest.length;
    this.#handed = rest.lastSequence;
    return rest;
  }

  /** Takes the next item that has arrived: a batch becomes the current one. Throws the end's error where there is none. */
  #receive(): Item | undefined {
    const item: Item | undefined = this.#buffer.get();
    if (item === undefined) {
      const ended = this.#buffer.ended;
      if (ended?.error !== undefined) {
        throw ended.error;
      }
      return undefined;
    }
    if ("notice" in item) {
      this.#follow(item.notice);
      return item;
    }
    const batch = item.batch as Batch<T>;
    this.#done();
    batch.owner = this.#connection;
    this.#batch = batch;
    this.#index = 0;
    this.#handed = batch.firstSequence - 1;
    this.#connection.taken(batch);
    return item;
  }

  #follow(notice: Notice): void {
    const connection = this.#connection;
    if (notice.kind === "snapshotComplete") {
      connection.copying = undefined;
    } else if (notice.kind === "snapshotProgress") {
      connection.copying = notice;
    }
  }

  /** Records where the session was moved to, and that the current batch was handed out to its end. */
  #done(): void {
    if (this.#openedAt !== this.#connection.openedAt) {
      this.#openedAt = this.#progress = this.#connection.openedAt;
    }
    const batch = this.#batch;
    if (batch?.lastSequence === this.#handed && batch.feedPosition.position.length > 0) {
      if (batch.lastSequence > this.#progress.after) {
        this.#progress = { after: batch.lastSequence, feedPosition: batch.feedPosition };
      }
    }
  }

  #isOverdue(): boolean {
    if (++this.#looks >= LOOK_EVERY) {
      this.#looks = 0;
      this.#overdue = performance.now() - this.#turnMs >= TURN_MS;
    }
    return this.#overdue;
  }

  /** Events may come as fast as they are taken; the event loop's other work gets its turn in between. */
  async #turn(): Promise<void> {
    await new Promise((resolve) => {
      setImmediate(resolve);
    });
    this.#turnMs = performance.now();
    this.#overdue = false;
  }
}

/** @internal Asks a session to end, and ends it if that takes longer. */
export async function closeConnection(connection: Connection, timeoutMs: number, reason?: Error): Promise<void> {
  connection.close(reason);
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => {
    if (timeoutMs <= LONGEST_TIMER_MS) {
      timer = setTimeout(resolve, timeoutMs);
    }
  });
  await Promise.race([connection.done, late]);
  clearTimeout(timer);
  connection.cancel(undefined);
  await connection.done;
  connection.closed();
}

function warn(notice: Notice): void {
  if (notice.kind === "snapshotProgress" || notice.kind === "snapshotComplete") {
    return; // Nothing is wrong.
  }
  const { kind, ...facts } = notice;
  const text = notice.kind === "skipped" ? skippedText(notice) : kind;
  const shown = Object.entries(facts).map(([name, value]: [string, unknown]) => [name, readable(value)]);
  process.emitWarning(`feedmux session: ${text}`, {
    type: "FeedmuxNotice",
    detail: JSON.stringify(Object.fromEntries(shown)),
  });
}

function skippedText({ hadReached, beginsAt }: Skipped): string {
  return (
    `another session or a seek moved the stored position from ${timeText(hadReached)} to ${timeText(beginsAt)}: ` +
    "this session does not deliver the events in between"
  );
}

function timeText({ t, i }: Timestamp): string {
  return `${String(t)}.${String(i)}`;
}

function readable(value: unknown): unknown {
  return Buffer.isBuffer(value) ? value.toString("base64") : value instanceof Error ? value.message : value;
}
