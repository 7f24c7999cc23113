/**
 * The client: where the server is, and the calls to it. Every call rejects with FeedmuxError, and with TypeError for an
 * option that it does not know: a misspelt one would otherwise be ignored.
 */

import { randomUUID } from "node:crypto";

import { create } from "@bufbuild/protobuf";
import type { ChannelOptions } from "@grpc/grpc-js";
import type { Document } from "bson";

import { InvalidArgumentError, SnapshotUnsupportedError } from "./errors.js";
import type {
  Explanation,
  Feed,
  OnHistoryLost,
  OnInvalidate,
  ResolvedPosition,
  Start,
  SubscriptionInfo,
} from "./feeds.js";
import {
  ChangeFeed,
  ExplainRequestSchema,
  ResolvePositionRequestSchema,
  type ResolvePositionResponse,
} from "./gen/feedmux/v1/change_feed_pb.js";
import {
  CreateSubscriptionRequestSchema,
  DeleteSubscriptionRequestSchema,
  GetSubscriptionRequestSchema,
  ListSubscriptionsRequestSchema,
  SeekSubscriptionRequestSchema,
  Subscriptions,
  UpdateSubscriptionRequestSchema,
} from "./gen/feedmux/v1/subscriptions_pb.js";
import type { Feed as FeedMessage } from "./gen/feedmux/v1/feed_pb.js";
import { CALL_NAMES, type CallOptions, clientClosed, Transport, type Tls } from "./transport.js";
import {
  check,
  checkBoolean,
  checkInteger,
  checkNames,
  checkText,
  namesOf,
  SESSION_NAMES,
  sessionOptions,
  type SomeSessionOptions,
} from "./options.js";
import {
  explanation,
  feedMessage,
  isSnapshot,
  resolvedPosition,
  type StartInit,
  startMessage,
  subscriptionInfo,
  type SubscriptionInit,
  subscriptionInit,
} from "./requests.js";
import type { Opening, Connection } from "./connection.js";
import { closeConnection, type OnNotice, Session } from "./session.js";
import { cleanToken, type Token } from "./token.js";

/** What a client is made with. */
export interface ClientOptions {
  /**
   * Visible ASCII. White space around it is removed, as of a token: a key read from a file ends with a newline. No error
   * shows it.
   */
  readonly apiKey?: string | undefined;
  /**
   * A JWT or an API key, or a function that returns one; instead of `apiKey`. If the function fails, or its token cannot
   * be sent, a unary call rejects with UnavailableError and a session asks again after its backoff.
   */
  readonly token?: Token | undefined;
  /** Name of the MongoDB deployment in the server's configuration. Default `main`. */
  readonly source?: string | undefined;
  /** `true` for the system's roots. Default: plaintext. */
  readonly tls?: boolean | Tls | undefined;
  /** Limits the unary calls. Default 30 s. */
  readonly timeoutMs?: number | undefined;
  /** Defaults of this client's sessions. */
  readonly session?: SomeSessionOptions | undefined;
  readonly channelOptions?: ChannelOptions | undefined;
}

/** How to open a session, besides how it shall behave. */
export interface OpenOptions extends SomeSessionOptions {
  readonly onNotice?: OnNotice | undefined;
  /**
   * Abandons the session at once, also while it is being opened: what waits is rejected with the signal's reason, acks not
   * yet sent are not sent. For a deadline of opening alone there is `openTimeoutMs`.
   */
  readonly signal?: AbortSignal | undefined;
}

/** What may be changed of a subscription. */
export interface SubscriptionChange {
  readonly feed?: Feed | undefined;
  readonly onInvalidate?: OnInvalidate | undefined;
  readonly onHistoryLost?: OnHistoryLost | undefined;
  /** If set, must be the stored one: it guards against another client's change in between. */
  readonly etag?: string | undefined;
}

/** How to open a session of a subscription. */
export interface SubscriptionOpenOptions extends OpenOptions {
  /** Ends another client's session instead of failing with SubscriptionBusyError. */
  readonly takeover?: boolean;
}

/** How to open a session of a feed. */
export interface FeedOpenOptions extends OpenOptions {
  /** By default now. */
  readonly start?: Start | undefined;
}

/** How to create a subscription. */
export interface CreateOptions extends CallOptions {
  /** By default now. */
  readonly start?: Start;
  /** Default `stop`. */
  readonly onInvalidate?: OnInvalidate;
  /** Default `fail`. */
  readonly onHistoryLost?: OnHistoryLost;
}

/** How to delete a subscription. */
export interface DeleteOptions extends CallOptions {
  /** If set, must be the stored one: it guards against another client's change in between. */
  readonly etag?: string;
  readonly allowMissing?: boolean;
}

/** What to explain besides the feed. */
export interface ExplainOptions extends CallOptions {
  readonly start?: Start;
}

/** How to list subscriptions. */
export interface ListOptions extends CallOptions {
  /** How many to request at once, at most. Default 100. */
  readonly pageSize?: number;
}

const CLIENT_NAMES = namesOf<ClientOptions>({
  apiKey: true,
  token: true,
  source: true,
  tls: true,
  timeoutMs: true,
  session: true,
  channelOptions: true,
});
/** Host and port, or a target with a scheme: without a port, gRPC would take that of HTTPS. */
const TARGET =
  /^((\[[^\]]+\]|[^:/\s[\]]+):\d{1,5}|(dns|ipv4|ipv6|unix|unix-abstract|xds):.+|(?!https?:)[a-z][a-z0-9+.-]*:\/\/.+)$/i;
const TLS_NAMES = namesOf<Tls>({ ca: true, cert: true, key: true, serverName: true });
const OPEN_NAMES = [...SESSION_NAMES, ...namesOf<OpenOptions, SomeSessionOptions>({ onNotice: true, signal: true })];
const SUBSCRIPTION_OPEN_NAMES = [...OPEN_NAMES, ...namesOf<SubscriptionOpenOptions, OpenOptions>({ takeover: true })];
const FEED_OPEN_NAMES = [...OPEN_NAMES, ...namesOf<FeedOpenOptions, OpenOptions>({ start: true })];
const CREATE_NAMES = [
  ...namesOf<CreateOptions, CallOptions>({ start: true, onInvalidate: true, onHistoryLost: true }),
  ...CALL_NAMES,
];
const CHANGE_NAMES = namesOf<SubscriptionChange>({ feed: true, onInvalidate: true, onHistoryLost: true, etag: true });
const DELETE_NAMES = [...namesOf<DeleteOptions, CallOptions>({ etag: true, allowMissing: true }), ...CALL_NAMES];
const EXPLAIN_NAMES = [...namesOf<ExplainOptions, CallOptions>({ start: true }), ...CALL_NAMES];
const LIST_NAMES = [...namesOf<ListOptions, CallOptions>({ pageSize: true }), ...CALL_NAMES];

interface Shared {
  readonly transport: Transport;
  readonly source: string;
  readonly session: SomeSessionOptions | undefined;
  readonly connections: Set<Connection>;
  isClosed: boolean;
}

/** A connection to feedmux. It connects with the first call. */
export class Client implements AsyncDisposable {
  readonly #shared: Shared;

  /**
   * `target` is `host:port`, or any gRPC target. Throws TypeError for an unknown option, for a key or token that cannot
   * be sent, for a certificate without its key and for a value of another type, RangeError for a number out of range.
   */
  constructor(target: string, options: ClientOptions = {}) {
    if (typeof target !== "string" || !TARGET.test(target)) {
      throw new TypeError("the target is host:port, as in localhost:7117");
    }
    checkNames(options, CLIENT_NAMES, "a client's options");
    const { apiKey, token, tls } = options;
    if (apiKey !== undefined && token !== undefined) {
      throw new TypeError("give apiKey or token, not both");
    }
    const secure = tls === true ? {} : tls === false ? undefined : tls;
    if (secure !== undefined) {
      checkNames(secure, TLS_NAMES, "tls"); // null is an error, and not plain text
    }
    if ((secure?.cert === undefined) !== (secure?.key === undefined)) {
      throw new TypeError("mutual TLS needs both: cert and key");
    }
    const given = [apiKey, token].find((each) => each !== undefined);
    const clean = given === undefined || typeof given === "function" ? given : cleanToken(given);
    sessionOptions(options.session);
    const timeoutMs = options.timeoutMs ?? 30_000;
    check(timeoutMs, 0, Infinity, "timeoutMs");
    const source = options.source ?? "main";
    checkText(source, "source");
    this.#shared = {
      transport: new Transport(
        { address: target, token: clean, tls: secure, channelOptions: options.channelOptions ?? {} },
        timeoutMs,
      ),
      source,
      session: options.session,
      connections: new Set(),
      isClosed: false,
    };
  }

  /** Returns the durable subscription with this name. It sends nothing. Throws TypeError for what is no text. */
  subscription(name: string): Subscription {
    checkText(name, "a subscription's name");
    return new Subscription(this.#shared, name);
  }

  /**
   * Returns a feed whose position the caller stores; without an argument, of the whole deployment. It sends nothing. A
   * feed that is `undefined` is a TypeError of the feed's methods.
   */
  feed(...given: [feed?: Feed]): InlineFeed {
    return new InlineFeed(this.#shared, feedOf(given));
  }

  /**
   * Iterates over all of the tenant's subscriptions, in order of their names, and requests each page when it is needed.
   */
  async *listSubscriptions(options: ListOptions = {}): AsyncGenerator<SubscriptionInfo, undefined> {
    checkNames(options, LIST_NAMES, "the options of listSubscriptions()");
    const { pageSize = 100, ...call } = options;
    checkInteger(pageSize, 0, 2 ** 31 - 1, "pageSize");
    let pageToken = "";
    do {
      const request = create(ListSubscriptionsRequestSchema, { pageSize, pageToken });
      const page = await this.#shared.transport.unary(Subscriptions.method.listSubscriptions, request, call);
      yield* page.subscriptions.map(subscriptionInfo);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /**
   * Closes the open sessions, all at the same time and each within its `closeTimeoutMs`, and sends their acks. Then it
   * closes the connections. A call that waits, in one of these sessions or in a unary call, and every later call
   * rejects with SessionClosedError.
   */
  async close(): Promise<void> {
    const { connections, transport } = this.#shared;
    this.#shared.isClosed = true;
    await Promise.all(
      [...connections].map((connection) => closeConnection(connection, connection.closeTimeoutMs, clientClosed())),
    );
    transport.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** A durable subscription, by name. */
export class Subscription {
  readonly name: string;
  readonly #shared: Shared;

  /** @internal */
  constructor(shared: Shared, name: string) {
    this.#shared = shared;
    this.name = name;
  }

  /** A session. `takeover` ends another client's session instead of failing with SubscriptionBusyError. */
  async open<T extends Document = Document>(options: SubscriptionOpenOptions = {}): Promise<Session<T>> {
    checkNames(options, SUBSCRIPTION_OPEN_NAMES, "the options of open()");
    const { takeover = false, ...others } = options;
    checkBoolean(takeover, "takeover");
    return await openSession(this.#shared, { subscription: this.name, takeover, instanceId: randomUUID() }, others);
  }

  /**
   * Creates it; `start` is by default now. Creating it again with the same content changes nothing; different content
   * rejects with SubscriptionExistsError. Without arguments, it is of the whole deployment; a feed that is `undefined` is
   * a TypeError.
   */
  async create(...given: [feed?: Feed, options?: CreateOptions]): Promise<SubscriptionInfo> {
    const [, options = {}] = given;
    checkNames(options, CREATE_NAMES, "the options of create()");
    const { start, onInvalidate = "stop", onHistoryLost = "fail", ...call } = options;
    const { transport, source } = this.#shared;
    const feed = feedMessage(feedOf(given), source);
    const stored = start === undefined ? undefined : await storedStart(transport, feed, startMessage(start), call);
    const request = create(CreateSubscriptionRequestSchema, {
      subscription: subscriptionInit(this.name, feed, onInvalidate, onHistoryLost),
      ...(stored !== undefined && { start: stored }),
    });
    return subscriptionInfo(await transport.unary(Subscriptions.method.createSubscription, request, call));
  }

  /** Returns the subscription. Rejects with SubscriptionNotFoundError. */
  async get(call?: CallOptions): Promise<SubscriptionInfo> {
    const request = create(GetSubscriptionRequestSchema, { name: this.name });
    return subscriptionInfo(await this.#shared.transport.unary(Subscriptions.method.getSubscription, request, call));
  }

  /** Changes what is given; the position stays. */
  async update(change: SubscriptionChange, call?: CallOptions): Promise<SubscriptionInfo> {
    checkNames(change, CHANGE_NAMES, "what update() changes");
    const { feed, onInvalidate, onHistoryLost, etag = "" } = change;
    checkText(etag, "etag");
    const given = { feed, on_invalidate: onInvalidate, on_history_lost: onHistoryLost };
    const paths = Object.entries(given).flatMap(([path, value]) => (value === undefined ? [] : [path]));
    if (paths.length === 0) {
      throw new TypeError("nothing to update: set feed, onInvalidate or onHistoryLost");
    }
    const request = create(UpdateSubscriptionRequestSchema, {
      subscription: { ...this.#init(feed, onInvalidate, onHistoryLost), etag },
      updateMask: { paths },
    });
    return subscriptionInfo(await this.#shared.transport.unary(Subscriptions.method.updateSubscription, request, call));
  }

  /** Moves the stored position, forward or backward. An open session continues from there. */
  async seek(to: Start, call?: CallOptions): Promise<SubscriptionInfo> {
    const { transport } = this.#shared;
    let start = startMessage(to);
    if (isSnapshot(start)) {
      const get = create(GetSubscriptionRequestSchema, { name: this.name });
      const { feed } = await transport.unary(Subscriptions.method.getSubscription, get, call);
      start = await storedStart(transport, feed, start, call);
    }
    const request = create(SeekSubscriptionRequestSchema, { name: this.name, to: start });
    return subscriptionInfo(await transport.unary(Subscriptions.method.seekSubscription, request, call));
  }

  /** Deletes it. Rejects with SubscriptionNotFoundError unless `allowMissing`. */
  async delete(options: DeleteOptions = {}): Promise<void> {
    checkNames(options, DELETE_NAMES, "the options of delete()");
    const { etag = "", allowMissing = false, ...call } = options;
    checkText(etag, "etag");
    checkBoolean(allowMissing, "allowMissing");
    const request = create(DeleteSubscriptionRequestSchema, { name: this.name, etag, allowMissing });
    await this.#shared.transport.unary(Subscriptions.method.deleteSubscription, request, call);
  }

  #init(
    feed: Feed | undefined,
    onInvalidate: OnInvalidate | undefined,
    onHistoryLost: OnHistoryLost | undefined,
  ): SubscriptionInit {
    const message = feed === undefined ? undefined : feedMessage(feed, this.#shared.source);
    return subscriptionInit(this.name, message, onInvalidate, onHistoryLost);
  }
}

/** A feed whose position the caller stores. */
export class InlineFeed {
  readonly feed: Feed;
  readonly #shared: Shared;

  /** @internal */
  constructor(shared: Shared, feed: Feed) {
    this.#shared = shared;
    this.feed = feed;
  }

  /** A session at `start`, by default now. */
  async open<T extends Document = Document>(options: FeedOpenOptions = {}): Promise<Session<T>> {
    checkNames(options, FEED_OPEN_NAMES, "the options of open()");
    const { start, ...others } = options;
    const opening = {
      feed: feedMessage(this.feed, this.#shared.source),
      start: start === undefined ? undefined : startMessage(start),
      instanceId: randomUUID(),
    };
    return await openSession(this.#shared, opening, others);
  }

  /** Reports what `open` would do. A refusal is part of the result, not an error. */
  async explain(options: ExplainOptions = {}): Promise<Explanation> {
    checkNames(options, EXPLAIN_NAMES, "the options of explain()");
    const { start, ...call } = options;
    const request = create(ExplainRequestSchema, {
      feed: feedMessage(this.feed, this.#shared.source),
      ...(start !== undefined && { start: startMessage(start) }),
    });
    return explanation(await this.#shared.transport.unary(ChangeFeed.method.explain, request, call));
  }

  /** Returns the position that a start stands for, to store it. */
  async resolve(start: Start, call?: CallOptions): Promise<ResolvedPosition> {
    const { transport, source } = this.#shared;
    return resolvedPosition(await resolve(transport, feedMessage(this.feed, source), startMessage(start), call));
  }
}

/** The feed among arguments. A variable that was not set, `undefined`, would be everybody's events: it is no feed. */
function feedOf(given: readonly unknown[]): Feed {
  return given.length === 0 ? {} : (given[0] as Feed);
}

async function resolve(
  transport: Transport,
  feed: FeedMessage | undefined,
  start: StartInit,
  call: CallOptions | undefined,
): Promise<ResolvePositionResponse> {
  const request = create(ResolvePositionRequestSchema, { ...(feed !== undefined && { feed }), start });
  let answer: ResolvePositionResponse;
  try {
    answer = await transport.unary(ChangeFeed.method.resolvePosition, request, call);
  } catch (error) {
    // A server that does not know the field sees an empty Start.
    if (isSnapshot(start) && error instanceof InvalidArgumentError && error.message.includes("start is required")) {
      throw new SnapshotUnsupportedError("would begin at the present");
    }
    throw error;
  }
  if (isSnapshot(start) && answer.snapshot === undefined) {
    throw new SnapshotUnsupportedError("would begin at the present");
  }
  return answer;
}

/**
 * What to send where the server stores the start. A server that is older than copies would store the present for
 * `snapshot`, and a call that is repeated at a newer replica would find nothing wrong. It rejects the position of a copy.
 */
async function storedStart(
  transport: Transport,
  feed: FeedMessage | undefined,
  start: StartInit,
  call: CallOptions | undefined,
): Promise<StartInit> {
  if (!isSnapshot(start)) {
    return start;
  }
  const { position } = await resolve(transport, feed, start, call);
  return { at: { case: "position", value: position } };
}

async function openSession<T extends Document>(
  { transport, session, connections, isClosed }: Shared,
  opening: Opening,
  { onNotice, signal, ...options }: OpenOptions,
): Promise<Session<T>> {
  if (isClosed) {
    throw clientClosed();
  }
  if (onNotice !== undefined && typeof onNotice !== "function") {
    throw new TypeError("onNotice is a function");
  }
  return await Session.open<T>(transport, opening, sessionOptions(options, session), onNotice, signal, connections);
}
