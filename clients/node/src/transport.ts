/**
 * The way to the server: one gRPC channel, credentials, and the calls that sessions and clients make. The channel is made
 * at the first use. Nothing here knows what the messages mean.
 */

import type { Socket } from "node:net";

import { type DescMethodUnary, type DescMessage, fromBinary, type MessageShape, toBinary } from "@bufbuild/protobuf";
import {
  type ChannelOptions,
  Client as GrpcClient,
  credentials,
  type ChannelCredentials,
  Metadata,
  status as Status,
} from "@grpc/grpc-js";

import { checkTexts } from "./documents.js";
import { isLoopback } from "./endpoint.js";
import { SessionClosedError, UnavailableError } from "./errors.js";
import { ChangeFeed } from "./gen/feedmux/v1/change_feed_pb.js";
import { check, checkNames, LONGEST_TIMER_MS, namesOf } from "./options.js";
import { errorFromStatus } from "./status.js";
import { type Call } from "./stream.js";
import { type Token, TokenCalls } from "./token.js";
import { VERSION } from "./version.js";

const CHANNEL_OPTIONS: ChannelOptions = {
  "grpc.max_receive_message_length": 72 * 1024 * 1024,
  "grpc.max_send_message_length": 72 * 1024 * 1024,
  "grpc.keepalive_time_ms": 20_000,
  "grpc.keepalive_timeout_ms": 10_000,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 5_000,
  "grpc.use_local_subchannel_pool": 1,
  // HTTP/2's default of 64 KiB would have a batch of 1 MiB wait for many round trips.
  "grpc-node.flow_control_window": 8 * 1024 * 1024,
  "grpc.primary_user_agent": `feedmux-node/${VERSION}`,
};
const SUBSCRIBE = pathOf(ChangeFeed.method.subscribe);
const ROUTE_KEY = "x-feedmux-route";
/** A unary call that times out after at least this long treats its connection as dead. */
const DEAD_AFTER_MS = 5_000;
/** How long the last messages of a channel that is closed may take. */
const LINGER_MS = 5_000;

/** TLS, in PEM. No `ca` is the system's roots; `cert` and `key` together are mutual TLS. */
export interface Tls {
  readonly ca?: Buffer | string | undefined;
  readonly cert?: Buffer | string | undefined;
  readonly key?: Buffer | string | undefined;
  /** What the server's certificate is checked against where it is not the target's host. */
  readonly serverName?: string | undefined;
}

/** Where the server is and how to speak to it. */
export interface Target {
  readonly address: string;
  readonly token: Token | undefined;
  readonly tls: Tls | undefined;
  readonly channelOptions: ChannelOptions;
}

/** Bounds of a unary call. */
export interface CallOptions {
  /** Cancels the call, which is then rejected with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /** By default the client's. */
  readonly timeoutMs?: number | undefined;
}

/** The names of a unary call's options. */
export const CALL_NAMES = namesOf<CallOptions>({ signal: true, timeoutMs: true });

interface Cancellable {
  cancel(): void;
}

/** A gRPC channel, which has one connection, and the calls that are open on it. */
class Channel {
  readonly client: GrpcClient;
  readonly #calls = new Set<Cancellable>();
  readonly #sockets = new Set<Socket>();
  #isOver = false;
  #onUnused: (() => void) | undefined;

  constructor(address: string, tls: Tls | undefined, options: ChannelOptions) {
    const chosen = channelCredentials(tls);
    // gRPC promises nothing of this method. With a version that lacks it, the sockets of silent servers stay open.
    const inner: { _createSecureConnector?: ChannelCredentials["_createSecureConnector"] } = chosen;
    const createConnector = inner._createSecureConnector?.bind(chosen);
    if (createConnector !== undefined) {
      inner._createSecureConnector = (...given) => {
        const connector = createConnector(...given);
        const connect = connector.connect.bind(connector);
        connector.connect = (socket) => {
          this.#sockets.add(socket);
          socket.once("close", () => this.#sockets.delete(socket));
          if (this.#isOver) {
            socket.destroy();
          }
          return connect(socket);
        };
        return connector;
      };
    }
    this.client = new GrpcClient(address, chosen, options);
  }

  begin(call: Cancellable): void {
    this.#calls.add(call);
  }

  end(call: Cancellable): void {
    this.#calls.delete(call);
    this.#closeIfUnused();
  }

  /** There will be no new calls: it closes with the last of those that it has. */
  leave(onUnused: () => void): void {
    this.#onUnused = onUnused;
    this.#closeIfUnused();
  }

  /** Cancels the calls that it has: a channel that is closed lets them run. */
  close(): void {
    this.#disconnect();
    for (const call of this.#calls) {
      call.cancel();
    }
  }

  #closeIfUnused(): void {
    if (this.#onUnused !== undefined && this.#calls.size === 0) {
      this.#disconnect();
      this.#onUnused();
    }
  }

  /** gRPC ends a connection only in agreement with the server, and waits for one that says nothing without end. */
  #disconnect(): void {
    this.client.close();
    setTimeout(() => {
      this.#isOver = true;
      this.#sockets.forEach((socket) => socket.destroy());
    }, LINGER_MS).unref();
  }
}

/** The calls of a client, and its channels. */
export class Transport {
  readonly #target: Target;
  readonly #timeoutMs: number;
  readonly #tokens: TokenCalls | undefined;
  /** Gets the new calls. */
  #current: Channel | undefined;
  /** Get no new calls, and may still have open ones. */
  readonly #left = new Set<Channel>();
  readonly #channelOf = new WeakMap<Call, Channel>();
  #closed = false;

  constructor(target: Target, timeoutMs: number) {
    this.#target = target;
    this.#timeoutMs = timeoutMs;
    this.#tokens = typeof target.token === "function" ? new TokenCalls(target.token) : undefined;
  }

  /** Each call asks for the token again, so that after one that has expired another may come. */
  get renewsToken(): boolean {
    return this.#tokens !== undefined;
  }

  /** Begins a Subscribe call. Throws FeedmuxError. */
  async subscribe(route: string): Promise<Call> {
    const metadata = await this.#metadata(route);
    const channel = this.#channel();
    const call = channel.client.makeBidiStreamRequest(SUBSCRIBE, asBuffer, asItIs, metadata);
    channel.begin(call);
    call.once("status", () => {
      channel.end(call);
    });
    this.#channelOf.set(call, channel);
    return call;
  }

  /**
   * Has new calls go over a new connection, because this one hears nothing: gRPC would use its connection for as long as
   * keepalive takes to give that up. Streams on it that are in order stay.
   */
  leave(call: Call): void {
    const channel = this.#channelOf.get(call);
    if (channel !== undefined) {
      this.#leave(channel);
    }
  }

  /** One unary call. Throws FeedmuxError, the signal's reason, or TypeError for an option that there is not. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    checkNames(options, CALL_NAMES, "a call's options");
    const { signal, timeoutMs = this.#timeoutMs } = options;
    check(timeoutMs, 0, Infinity, "timeoutMs");
    checkTexts(request, method.name);
    const endMs = performance.now() + timeoutMs;
    signal?.throwIfAborted();
    const metadata = await within(this.#metadata(""), timeoutMs, signal);
    const beganMs = performance.now();
    // gRPC takes a time of the wall clock, which may have been set while the token was awaited. It rejects a time that is
    // very far away, but knows that one may be without end.
    const deadline = timeoutMs <= LONGEST_TIMER_MS ? Date.now() + endMs - beganMs : Infinity;
    return await new Promise((resolve, reject) => {
      const channel = this.#channel();
      const call = channel.client.makeUnaryRequest(
        pathOf(method),
        (message: MessageShape<I>) => Buffer.from(toBinary(method.input, message)),
        (bytes) => fromBinary(method.output, bytes),
        request,
        metadata,
        { deadline },
        (error, answer) => {
          if (error?.code === Status.DEADLINE_EXCEEDED && performance.now() - beganMs >= DEAD_AFTER_MS) {
            this.#leave(channel);
          }
          channel.end(call);
          signal?.removeEventListener("abort", cancel);
          if (signal?.aborted === true) {
            reject(signal.reason as Error);
          } else if (this.#closed && error?.code === Status.CANCELLED) {
            reject(clientClosed());
          } else if (error || answer === undefined) {
            reject(error ? errorFromStatus(error) : new UnavailableError("no answer"));
          } else {
            resolve(answer);
          }
        },
      );
      channel.begin(call);
      const cancel = (): void => {
        call.cancel();
      };
      signal?.addEventListener("abort", cancel);
    });
  }

  /** Ends the channels and the calls on them; later calls are rejected. */
  close(): void {
    this.#closed = true;
    for (const channel of [this.#current, ...this.#left]) {
      channel?.close();
    }
  }

  #leave(channel: Channel): void {
    if (channel === this.#current) {
      this.#current = undefined;
      this.#left.add(channel);
      channel.leave(() => this.#left.delete(channel));
    }
  }

  #channel(): Channel {
    if (this.#closed) {
      throw clientClosed();
    }
    const { address, tls, channelOptions } = this.#target;
    const options = {
      ...CHANNEL_OPTIONS,
      ...(isLoopback(address) && { "grpc.enable_http_proxy": 0 }),
      ...(tls?.serverName !== undefined && {
        "grpc.ssl_target_name_override": tls.serverName,
        "grpc.default_authority": tls.serverName,
      }),
      ...channelOptions,
    };
    return (this.#current ??= new Channel(address, tls, options));
  }

  async #metadata(route: string): Promise<Metadata> {
    const metadata = new Metadata();
    const token = this.#tokens === undefined ? this.#target.token : await this.#tokens.fresh();
    if (token !== undefined) {
      metadata.set("authorization", `Bearer ${String(token)}`);
    }
    if (route !== "") {
      metadata.set(ROUTE_KEY, route);
    }
    return metadata;
  }
}

export function clientClosed(): SessionClosedError {
  return new SessionClosedError("the client was closed");
}

/** Rejects where a token takes longer than the call may, and with the signal's reason. */
async function within<T>(work: Promise<T>, timeoutMs: number, signal: AbortSignal | undefined): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  let abort = (): void => undefined;
  const cut = new Promise<never>((_, reject) => {
    if (timeoutMs <= LONGEST_TIMER_MS) {
      timer = setTimeout(() => {
        const message = `the token function has not returned within ${String(timeoutMs / 1000)} s`;
        reject(new UnavailableError(message, { status: "DEADLINE_EXCEEDED" }));
      }, timeoutMs);
    }
    abort = () => {
      reject(signal?.reason as Error);
    };
  });
  signal?.addEventListener("abort", abort);
  try {
    return await Promise.race([work, cut]);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}

function channelCredentials(tls: Tls | undefined): ChannelCredentials {
  if (tls === undefined) {
    return credentials.createInsecure();
  }
  const [ca, key, cert] = [tls.ca, tls.key, tls.cert].map((pem) => (pem === undefined ? null : Buffer.from(pem)));
  return credentials.createSsl(ca, key, cert);
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function asItIs(bytes: Buffer): Buffer {
  return bytes;
}

function pathOf(method: { parent: { typeName: string }; name: string }): string {
  return `/${method.parent.typeName}/${method.name}`;
}
