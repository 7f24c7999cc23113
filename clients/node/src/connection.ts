/**
 * The network's side of a session: opens the stream, reads it, opens it again when it breaks, and ends it.
 *
 * What arrives goes through `responses`, `window` and `delivery-tracker` to the session buffer; acks and credit go up.
 * The decisions are in those, in `connection-states` and in `recovery`; the clock, timers and calls are here. It holds
 * no reference to the session, so that one that is dropped without `close()` can be collected and its call ended.
 */

import type { Batch } from "./batches.js";
import {
  type Action,
  type Event,
  hasStream,
  isFirstOpening,
  type State,
  TABLE,
  transition,
} from "./connection-states.js";
import { Deferred } from "./deferred.js";
import {
  FeedInvalidatedError,
  FeedmuxError,
  InternalError,
  ProtocolError,
  SessionClosedError,
  SnapshotUnsupportedError,
  UnavailableError,
} from "./errors.js";
import type { Feed } from "./gen/feedmux/v1/feed_pb.js";
import { SessionBuffer } from "./session-buffer.js";
import { DeliveryTracker } from "./delivery-tracker.js";
import type { Transport } from "./transport.js";
import type { Notice, Rewound, SnapshotStatus } from "./notices.js";
import { LONGEST_TIMER_MS, type SessionOptions } from "./options.js";
import { isEarlier, NO_POSITION, type FeedPosition } from "./positions.js";
import { Backoff, ENDINGS, nextStep } from "./recovery.js";
import * as requests from "./requests.js";
import { isSnapshot, type StartInit } from "./requests.js";
import { type Delivery, type Opened, Reader, type Response } from "./responses.js";
import { type Call, listen } from "./stream.js";
import { Watchdog } from "./watchdog.js";
import { CreditWindow } from "./window.js";

/** What to open: a durable subscription by name, or a feed with a start. */
export type Opening = { readonly instanceId: string } & (
  | { readonly subscription: string; readonly takeover: boolean }
  | { readonly feed: Feed; readonly start: StartInit | undefined }
);

/** A position, and the highest ordinal before it. */
export interface Reached {
  readonly after: number;
  readonly feedPosition: FeedPosition;
}

/** Drives one session until it is closed or an error ends it. */
export class Connection {
  readonly buffer = new SessionBuffer();
  /** Resolves when the session is open for the first time; rejects with the error for which it never will be. */
  readonly opened: Promise<void>;
  /** Resolves when nothing runs any more. */
  readonly done: Promise<void>;
  /** A position up to which everything has been received, and the highest ordinal before it. */
  latest: Reached = { after: 0, feedPosition: NO_POSITION };
  /** Where the session began, or was moved to, and the highest ordinal before that. */
  openedAt: Reached = this.latest;
  /** The ordinal up to which the session hands out no more events, because it was moved. */
  withdrawn = 0;
  /** The last confirmed position; empty before. */
  committed: Buffer = Buffer.alloc(0);
  /** Of the present stream. */
  epoch = 0n;
  /** Set when a stream is opened within a copy of existing documents; follows the notices that the session hands out. */
  copying: SnapshotStatus | undefined;

  readonly #transport: Transport;
  readonly #opening: Opening;
  readonly #options: SessionOptions;
  readonly #durable: boolean;
  readonly #tracker: DeliveryTracker;
  readonly #window: CreditWindow;
  readonly #reader: Reader;
  readonly #backoff: Backoff;
  readonly #opened = new Deferred();

  /** The call of the present stream, between its first message up and its end. */
  #call: Call | undefined;
  /** Ends the present stream. */
  #interrupt: (error: FeedmuxError) => void = () => undefined;
  /** Ends the pause before the next one. */
  #endPause: () => void = () => undefined;
  #state: State = "OPENING";
  #closing = false;
  /** A close is over: nothing sends acks any more. */
  #closed = false;
  #cancelled: { readonly reason: Error | undefined } | undefined;
  #route = "";
  #limitBytes: number;
  #acked = 0;
  #openAcked = 0;
  /** The present stream asked for the start `snapshot`. */
  #askedForCopy = false;
  /** That of the copy that the server announced last: of the batches that arrive after it. */
  #generation = 0;
  #flushed = 0;
  #confirmed = 0;
  #sentSequence = 0;
  #confirmedSequence = 0n;
  #ackStep = Infinity;
  #ackTimer: NodeJS.Timeout | undefined;
  readonly #watchdog = new Watchdog();
  #openedMs = 0;
  /** Whether this stream began with a rewind. */
  #rewound = false;
  #begins: FeedPosition = NO_POSITION;
  /** What was acked when the server said that the stored position was moved; until a stream was opened after that. */
  #movedFrom: FeedPosition | undefined;

  constructor(transport: Transport, opening: Opening, options: SessionOptions) {
    this.#transport = transport;
    this.#opening = opening;
    this.#options = options;
    this.#durable = "subscription" in opening;
    this.#tracker = new DeliveryTracker(this.#durable, options.windowBytes);
    this.#window = new CreditWindow(options.windowEvents, options.windowBytes);
    this.#reader = new Reader(options.format !== "bson", options.bson);
    this.#backoff = new Backoff(options.backoffFirstMs, options.backoffMostMs, Math.random);
    this.#limitBytes = options.messageBytesMax;
    this.opened = this.#opened.promise;
    this.opened.catch(() => undefined); // The caller of open gets the error; after a cancel, nobody does.
    this.done = this.#run();
  }

  /** How long a close may take. */
  get closeTimeoutMs(): number {
    return this.#options.closeTimeoutMs;
  }

  /** Whether `close` or `cancel` was called. */
  isClosing(): boolean {
    return this.#closing;
  }

  /** Everything up to this ordinal has been processed. Throws SessionClosedError for a new one once a close is over. */
  ack(ordinal: number): void {
    if (ordinal <= this.#acked) {
      return;
    }
    if (this.#closed) {
      throw new SessionClosedError("the session is closed: acks are no longer sent");
    }
    this.#acked = ordinal;
    if (!hasStream(this.#state) || !this.#durable) {
      return;
    }
    if (ordinal - this.#flushed >= this.#ackStep) {
      this.#flushAcks();
    } else {
      this.#ackTimer ??= setTimeout(() => {
        this.#flushAcks();
      }, this.#options.ackIntervalMs);
    }
  }

  /** A batch was handed out. */
  taken(batch: Batch): void {
    this.#window.take(batch.length, batch.sizeBytes);
    this.#grant();
  }

  /**
   * Hands out nothing more, sends the acks and asks the server to confirm them and end the stream. Where there is no
   * stream, one more is tried at once if acks are unconfirmed. A call that waits rejects with `reason`, or ends without
   * an error if there is none.
   */
  close(reason?: Error): void {
    if (this.#closing) {
      return;
    }
    this.#closing = true;
    this.buffer.end(reason);
    this.#move(this.#owesAcks() ? "CLOSE_WITH_ACKS" : "CLOSE");
    this.#endPause();
    if (this.#is("CLOSING")) {
      this.#sayClose();
    } else if (this.#is("ENDED")) {
      this.#interrupt(new UnavailableError("closed while connecting"));
    }
  }

  /** A close is over: warns once if the server has not confirmed all acks, and rejects later ones. */
  closed(): void {
    this.#closed = true;
    if (this.#durable && this.#acked > this.#confirmed) {
      this.#confirmed = Infinity;
      process.emitWarning(
        "feedmux session: closed before the server confirmed all acks: the next session may repeat their events",
        { type: "FeedmuxNotice" },
      );
    }
  }

  /** Ends everything at once; what waits gets `reason`. */
  cancel(reason: Error | undefined): void {
    this.#cancelled ??= { reason };
    this.#closing = true;
    this.buffer.end(reason);
    this.#move("ABANDON");
    this.#endPause();
    this.#interrupt(new UnavailableError("cancelled"));
  }

  async #run(): Promise<void> {
    let error: Error | undefined;
    try {
      await this.#keepOpen();
    } catch (failure) {
      error = asFeedmuxError(failure);
    }
    this.#move("ABANDON");
    error = this.#cancelled ? this.#cancelled.reason : error;
    this.buffer.end(error);
    this.#opened.reject(error ?? this.buffer.ended?.error ?? new UnavailableError("closed while connecting"));
  }

  async #keepOpen(): Promise<void> {
    let patienceMs = this.#options.openTimeoutMs;
    let giveUpMs = now() + patienceMs;
    let last: FeedmuxError | undefined;
    for (;;) {
      const text = `the server has not opened the session within ${String(patienceMs / 1000)} s`;
      const late = new UnavailableError(text, { status: "DEADLINE_EXCEEDED" });
      const ended = await this.#stream(giveUpMs, late);
      const isLate = ended === late;
      const error = isLate && last !== undefined ? last : ended;
      last = error;
      if (this.#is("ENDED")) {
        return;
      }
      const wasOpen = hasStream(this.#state);
      const step = nextStep(error, wasOpen && this.#transport.renewsToken);
      const action = this.#move(isLate ? "TIME_OVER" : ENDINGS[step]);
      if (action === "RAISE") {
        throw this.#located(error);
      }
      if (this.#is("ENDED")) {
        return;
      }
      if (wasOpen) {
        patienceMs = this.#options.reconnectTimeoutMs;
        giveUpMs = now() + patienceMs;
        if (now() - this.#openedMs > this.#options.backoffMostMs) {
          this.#backoff.reset();
        }
      }
      if (action === "FORGET") {
        this.#movedFrom ??= this.#tracker.ackedPosition(this.#acked);
        this.#forget();
      }
      const delayMs = this.#backoff.nextMs(error.retryAfterMs);
      if (now() + delayMs >= giveUpMs && this.#move("TIME_OVER") === "RAISE") {
        throw this.#located(error);
      }
      if (!isFirstOpening(this.#state)) {
        this.#say({ kind: "disconnected", error, retryInMs: delayMs });
      }
      await this.#pause(delayMs);
      if (this.#is("ENDED")) {
        return;
      }
      this.#move("BACKOFF_OVER");
    }
  }

  /** Changes the state as the table says, and returns what else to do. */
  #move(event: Event): Action {
    const [state, action] = transition(this.#state, event);
    this.#state = state;
    return action;
  }

  #is(state: State): boolean {
    return this.#state === state;
  }

  async #pause(delayMs: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, delayMs);
      this.#endPause = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** One stream from its beginning to its end, which is an error in any case: `late` where it is not open at `giveUpMs`. */
  async #stream(giveUpMs: number, late: FeedmuxError): Promise<FeedmuxError> {
    let isOver = false;
    let call: Call | undefined;
    let timer: NodeJS.Timeout | undefined;
    this.#reader.reset();
    const ended = await new Promise<FeedmuxError>((resolve) => {
      const end = (error: FeedmuxError = new UnavailableError("the server ended the stream")): void => {
        isOver = true;
        resolve(error);
      };
      const onMessage = (message: Buffer): void => {
        if (!isOver) {
          this.#attempt(() => {
            this.#read(message);
          }, end);
        }
      };
      this.#interrupt = end;
      if (giveUpMs - now() <= LONGEST_TIMER_MS) {
        timer = setTimeout(() => {
          if (!hasStream(this.#state)) {
            end(late);
          }
        }, giveUpMs - now());
      }
      this.#watchdog.start(this.#options.heartbeatMs, (silentMs) => {
        if (call !== undefined) {
          this.#transport.leave(call);
        }
        end(new UnavailableError(`the server sent nothing for ${String(silentMs / 1000)} s`));
      });
      this.#transport.subscribe(this.#route).then(
        (begun) => {
          call = begun;
          listen(begun, onMessage, end);
          if (isOver) {
            begun.cancel();
            return;
          }
          this.#call = begun;
          this.#attempt(() => begun.write(this.#openRequest()), end);
        },
        (error: unknown) => {
          end(asFeedmuxError(error));
        },
      );
    });
    clearTimeout(timer);
    this.#call = undefined;
    this.#watchdog.stop();
    this.#stopAckTimer();
    call?.cancel();
    return ended;
  }

  #attempt(work: () => void, onError: (error: FeedmuxError) => void): void {
    try {
      work();
    } catch (error) {
      onError(asFeedmuxError(error));
    }
  }

  #openRequest(): Uint8Array {
    const options = this.#options;
    const opening = this.#opening;
    this.#openAcked = this.#acked;
    const common = {
      format: requests.format(options.format),
      instanceId: opening.instanceId,
      credit: requests.credit(this.#window.open()),
      heartbeatInterval: requests.duration(options.heartbeatMs),
      messageBytesMax: options.messageBytesMax,
    };
    if ("feed" in opening) {
      const { position } = this.#tracker.latest;
      const start = position.length > 0 ? requests.startMessage({ position }) : opening.start;
      this.#askedForCopy = isSnapshot(start);
      return requests.openBytes({
        ...common,
        target: { case: "feed", value: opening.feed },
        ...(start && { start }),
      });
    }
    const feedPosition = this.#tracker.ackedPosition(this.#openAcked);
    return requests.openBytes({
      ...common,
      target: { case: "subscription", value: opening.subscription },
      takeover: opening.takeover && isFirstOpening(this.#state),
      ...((feedPosition.position.length > 0 || feedPosition.token.length > 0) && {
        lastAcked: requests.lastAcked(feedPosition, this.epoch),
      }),
    });
  }

  #read(message: Buffer): void {
    this.#watchdog.heard();
    if (message.length > this.#limitBytes) {
      throw new ProtocolError(
        `a message of ${String(message.length)} bytes, over the limit of ${String(this.#limitBytes)}`,
      );
    }
    const response = this.#reader.read(message);
    if (response !== undefined) {
      this.#receive(response);
    }
  }

  #receive(response: Response): void {
    const isOpened = response.kind === "opened";
    if (TABLE[this.#state][isOpened ? "OPENED" : "MESSAGE"] === undefined) {
      throw new ProtocolError(isOpened ? "Opened came twice" : "the first message was not Opened");
    }
    switch (response.kind) {
      case "delivery":
        this.#deliver(response);
        break;
      case "progress":
        this.#tracker.progress(response.feedPosition);
        this.#setLatest();
        this.#backoff.reset();
        break;
      case "committed":
        this.committed = response.position;
        this.#confirmedSequence = response.sequence;
        this.#settleAcks();
        break;
      case "opened":
        this.#onOpened(response);
        break;
      case "said":
        this.#hear(response.notice);
        break;
    }
  }

  #hear(notice: Notice): void {
    if (notice.kind === "rewound") {
      if (!this.#rewound) {
        // Otherwise the client has noticed what the server announces.
        this.#rewind(notice);
        this.#tracker.begin(this.#begins, this.#openAcked);
        this.#grant();
      }
      return;
    }
    if (notice.kind === "draining") {
      this.#flushAcks();
    } else if (notice.kind === "snapshotProgress" || notice.kind === "snapshotComplete") {
      this.#generation = notice.generation;
      this.#tracker.withinCopy = notice.kind === "snapshotProgress";
    } else if (notice.kind === "gap" && notice.reason === "TIMELINE_FORKED") {
      // Events from before the gap come once more after it, and are no repeats. For the server, what it has sent before
      // counts as acknowledged.
      this.#tracker.forget();
    }
    this.#say(notice);
  }

  #deliver({ firstSequence, batch }: Delivery): void {
    this.#window.receive(batch.length, batch.sizeBytes, batch.rawEvent(batch.length - 1).length);
    batch.generation = this.#generation;
    const repeats = this.#tracker.expectsRepeats();
    let [oldEvents, oldBytes] = [batch.length, batch.sizeBytes];
    for (const fresh of this.#tracker.arrive(firstSequence, batch, this.#acked)) {
      oldEvents -= fresh.length;
      oldBytes -= fresh.sizeBytes;
      this.buffer.put({ batch: fresh });
    }
    this.#setLatest();
    if (repeats) {
      this.#window.take(oldEvents, oldBytes);
      this.#grant();
      // Acks of events from before the reconnect have a sequence only now.
      this.#flushAcks();
    }
  }

  #onOpened(opened: Opened): void {
    if (this.#askedForCopy && opened.copying === undefined) {
      throw new SnapshotUnsupportedError("has opened the feed at the present");
    }
    if (opened.copying !== undefined) {
      this.#generation = opened.copying.generation;
    }
    const isFirst = isFirstOpening(this.#state);
    const tracker = this.#tracker;
    const movedFrom = this.#movedFrom;
    this.#movedFrom = undefined;
    const { clusterTime: hadReached, position: hadReachedPosition } =
      movedFrom ?? tracker.ackedPosition(this.#openAcked);
    const { clusterTime: beginsAt, position: beginsAtPosition } = opened.feedPosition;
    this.#begins = opened.feedPosition;
    this.#rewound = false;
    if (!isFirst && this.#durable && !opened.atLastAcked && beginsAt && hadReached) {
      if (isEarlier(beginsAt, hadReached)) {
        this.#rewind({ kind: "rewound", beginsAt, hadReached });
      } else if (movedFrom && isEarlier(hadReached, beginsAt) && !opened.copying) {
        // The Open had no last_acked, so the server cannot tell. A copy leaves nothing out.
        this.#say({ kind: "skipped", hadReached, beginsAt, hadReachedPosition, beginsAtPosition });
      }
    }
    this.buffer.beginStream(opened.copying !== undefined);
    if (!this.buffer.hasCompletion) {
      this.copying = opened.copying; // otherwise until the end of the copy is taken, after its documents
    }
    tracker.begin(opened.feedPosition, this.#openAcked);
    tracker.withinCopy = opened.copying !== undefined;
    this.#window.limit(opened.creditEventsMax, opened.creditBytesMax);
    if (opened.messageBytesMax > 0) {
      this.#limitBytes = Math.min(this.#options.messageBytesMax, opened.messageBytesMax);
    }
    if (opened.heartbeatMs > 0) {
      this.#watchdog.setInterval(opened.heartbeatMs);
    }
    this.#route = opened.routingKey || this.#route;
    this.#sentSequence = 0;
    this.#confirmedSequence = 0n;
    this.#ackStep = opened.unackedEventsMax > 0 ? Math.max(1, Math.floor(opened.unackedEventsMax / 2)) : Infinity;
    this.epoch = opened.epoch;
    this.#setLatest();
    if (isFirst || movedFrom) {
      this.#begin();
    }
    this.#move("OPENED");
    this.#openedMs = now();
    if (this.#is("CLOSING")) {
      this.#sayClose();
    } else {
      this.#grant();
      this.#flushAcks();
    }
    this.#opened.resolve();
  }

  #setLatest(): void {
    this.latest = { after: this.#tracker.received, feedPosition: this.#tracker.latest };
  }

  #grant(): void {
    if (!this.#is("OPEN")) {
      return;
    }
    const grant = this.#window.refill();
    if (grant !== undefined) {
      this.#call?.write(requests.creditBytes(grant));
    }
  }

  #flushAcks(): void {
    this.#stopAckTimer();
    if (!hasStream(this.#state) || !this.#durable) {
      return;
    }
    this.#flushed = this.#acked;
    const sequence = this.#tracker.ackedSequence(this.#flushed);
    if (sequence > this.#sentSequence) {
      this.#sentSequence = sequence;
      this.#call?.write(requests.ackBytes(sequence));
    } else {
      this.#settleAcks();
    }
  }

  #settleAcks(): void {
    // Acks of repeats that are still to come have not been sent. Those of events that the server does not deliver again,
    // because it was moved past them, are never sent.
    if (this.#confirmedSequence >= BigInt(this.#sentSequence) && !this.#tracker.owesAcks(this.#flushed)) {
      this.#confirmed = Math.max(this.#confirmed, this.#flushed);
    }
  }

  #sayClose(): void {
    this.#flushAcks();
    this.#call?.write(requests.CLOSE);
  }

  /** Whether the server may not know of all acks. */
  #owesAcks(): boolean {
    return this.#durable && this.#acked > this.#confirmed && this.#cancelled === undefined;
  }

  #stopAckTimer(): void {
    clearTimeout(this.#ackTimer);
    this.#ackTimer = undefined;
  }

  /** The session begins where this stream does, for the first time or because it was moved there. */
  #begin(): void {
    this.openedAt = this.latest = { after: this.#tracker.received, feedPosition: this.#begins };
  }

  #forget(): void {
    this.#tracker.forget();
    this.withdrawn = this.#tracker.received;
    // Acks of what came before have no meaning any more: the server need not confirm them.
    this.#confirmed = this.withdrawn;
    this.#setLatest();
    for (const batch of this.buffer.withdraw()) {
      this.#window.take(batch.length, batch.sizeBytes);
    }
  }

  #say(notice: Notice): void {
    this.buffer.put({ notice });
  }

  /** The stream begins before what was acknowledged. What was delivered comes again, acknowledged or not. */
  #rewind(rewound: Rewound): void {
    this.#forget();
    this.#begin();
    this.#say(rewound);
    this.#rewound = true;
  }

  #located(error: FeedmuxError): FeedmuxError {
    if (error instanceof FeedInvalidatedError) {
      error.position = this.#tracker.latest.position;
      error.resumeToken = this.#tracker.latest.resumeToken;
    }
    return error;
  }
}

function now(): number {
  return performance.now();
}

function asFeedmuxError(error: unknown): FeedmuxError {
  if (error instanceof FeedmuxError) {
    return error;
  }
  return new InternalError("a defect of the client", { status: "INTERNAL", reason: "INTERNAL", cause: error });
}
