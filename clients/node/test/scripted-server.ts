/**
 * A server that plays scripts: what a real one cannot be made to do (silence, broken promises, unknown fields).
 *
 * Each Subscribe call takes the next script; when scripts run out the last one is played again. Messages are made by the
 * functions below, with events whose `_id` is a plausible resume token.
 */

import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { anyPack, DurationSchema } from "@bufbuild/protobuf/wkt";
import {
  Metadata,
  Server,
  ServerCredentials,
  type ServerDuplexStream,
  type ServiceDefinition,
  status as Status,
  type StatusObject,
  type sendUnaryData,
  type ServerUnaryCall,
} from "@grpc/grpc-js";
import { serialize } from "bson";

import {
  type Open,
  type SubscribeRequest,
  SubscribeRequestSchema,
  SubscribeResponseSchema,
} from "../src/gen/feedmux/v1/change_feed_pb.js";
import { ErrorInfoSchema, RetryInfoSchema, StatusSchema } from "../src/gen/google/rpc/status_pb.js";

export type Response = NonNullable<MessageInitShape<typeof SubscribeResponseSchema>["message"]>;
export type Script = (call: Scripted) => Promise<void>;
type Wire = ServerDuplexStream<Buffer, Uint8Array>;

/** How a call ends. */
export interface Ending {
  readonly status: keyof typeof Status;
  readonly reason?: string;
  readonly metadata?: Record<string, string>;
  readonly retryAfterMs?: number;
}

/** One Subscribe call: what came up, and what goes down. */
export class Scripted {
  readonly received: SubscribeRequest[] = [];
  readonly metadata: Record<string, unknown>;
  /** Resolves when the client has cancelled the call. */
  readonly cancelled: Promise<void>;
  isCancelled = false;
  readonly #wire: Wire;
  readonly #waiting = new Set<() => void>();

  constructor(wire: Wire) {
    this.#wire = wire;
    this.metadata = wire.metadata.getMap();
    this.cancelled = new Promise((resolve) => {
      wire.once("cancelled", () => {
        this.isCancelled = true;
        resolve();
      });
    });
    wire.on("data", (bytes: Buffer) => {
      this.received.push(fromBinary(SubscribeRequestSchema, bytes));
      this.#waiting.forEach((wake) => {
        wake();
      });
      this.#waiting.clear();
    });
  }

  send(...messages: (Response | Uint8Array)[]): void {
    for (const message of messages) {
      this.#wire.write(
        message instanceof Uint8Array
          ? message
          : toBinary(SubscribeResponseSchema, create(SubscribeResponseSchema, { message })),
      );
    }
  }

  end(ending?: Ending): void {
    if (ending) {
      this.#wire.emit("error", statusObject(ending));
    } else {
      this.#wire.end();
    }
  }

  /** Waits until what has been received satisfies `wanted`. */
  async until(wanted: (call: this) => boolean): Promise<void> {
    while (!wanted(this)) {
      await new Promise<void>((resolve) => {
        this.#waiting.add(resolve);
      });
    }
  }

  async untilAcked(sequence: number): Promise<void> {
    await this.until((call) => (call.acks.at(-1) ?? 0) >= sequence);
  }

  async untilClosed(): Promise<void> {
    await this.until((call) => call.isClosed);
  }

  get open(): Open {
    const [first] = this.received;
    if (first?.message.case !== "open") {
      throw new Error("the first message was not Open");
    }
    return first.message.value;
  }

  get acks(): number[] {
    return this.received.flatMap(({ message }) =>
      message.case === "ack" ? Number(message.value.deliverySequence) : [],
    );
  }

  /** Granted after Open. */
  get grantedEvents(): number {
    return this.received.reduce(
      (sum, { message }) => (message.case === "credit" ? sum + Number(message.value.events) : sum),
      0,
    );
  }

  get isClosed(): boolean {
    return this.received.some(({ message }) => message.case === "close");
  }
}

function statusObject({ status, reason, metadata = {}, retryAfterMs }: Ending): StatusObject {
  const details = [];
  if (reason !== undefined) {
    details.push(anyPack(ErrorInfoSchema, create(ErrorInfoSchema, { reason, domain: "feedmux", metadata })));
  }
  if (retryAfterMs !== undefined) {
    const retryDelay = create(DurationSchema, { nanos: retryAfterMs * 1e6 });
    details.push(anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay })));
  }
  const trailers = new Metadata();
  if (details.length > 0) {
    trailers.set("grpc-status-details-bin", Buffer.from(toBinary(StatusSchema, create(StatusSchema, { details }))));
  }
  return { code: Status[status], details: "scripted", metadata: trailers };
}

/** What is answered to a request and its peer; undefined is never. */
export type Unary = Record<string, (request: Buffer, peer: string) => Uint8Array | Ending | undefined>;

/** Serves on a port of its own until it is disposed of. */
export class ScriptedServer implements AsyncDisposable {
  readonly calls: Scripted[] = [];
  address = "";
  readonly #scripts: Script[];
  readonly #server = new Server({ "grpc.max_send_message_length": 72 * 1024 * 1024 });
  #begun: () => void = () => undefined;
  #failure: unknown;

  private constructor(scripts: Script[]) {
    this.#scripts = scripts;
  }

  static async start(scripts: Script[], unary: Unary = {}): Promise<ScriptedServer> {
    const server = new ScriptedServer(scripts);
    server.#server.addService(method("ChangeFeed", "Subscribe", true), {
      Subscribe: (wire: Wire) => void server.#play(wire),
    });
    for (const [path, answer] of Object.entries(unary)) {
      const [service = "", name = ""] = path.split("/");
      server.#server.addService(method(service, name, false), {
        [name]: (call: ServerUnaryCall<Buffer, Uint8Array>, callback: sendUnaryData<Uint8Array>) => {
          const given = answer(call.request, call.getPeer());
          if (given instanceof Uint8Array) {
            callback(null, given);
          } else if (given !== undefined) {
            callback(statusObject(given));
          }
        },
      });
    }
    const port = await new Promise<number>((resolve, reject) => {
      server.#server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, bound) => {
        if (error) {
          reject(error);
        } else {
          resolve(bound);
        }
      });
    });
    server.address = `127.0.0.1:${String(port)}`;
    return server;
  }

  /** The call of that number, when its Open has come. */
  async call(index: number): Promise<Scripted> {
    for (;;) {
      const call = this.calls[index];
      if (call !== undefined) {
        return call;
      }
      await new Promise<void>((resolve) => {
        this.#begun = resolve;
      });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.forceShutdown();
    await Promise.resolve();
    if (this.#failure !== undefined) {
      throw this.#failure as Error;
    }
  }

  async #play(wire: Wire): Promise<void> {
    const call = new Scripted(wire);
    await call.until(({ received }) => received.length > 0);
    this.calls.push(call);
    this.#begun();
    const script = this.#scripts[Math.min(this.calls.length, this.#scripts.length) - 1];
    try {
      await script?.(call);
    } catch (error) {
      this.#failure ??= error;
    }
  }
}

function method(service: string, name: string, streams: boolean): ServiceDefinition {
  const same = (bytes: Buffer): Buffer => bytes;
  return {
    [name]: {
      path: `/feedmux.v1.${service}/${name}`,
      requestStream: streams,
      responseStream: streams,
      requestSerialize: same,
      requestDeserialize: same,
      responseSerialize: (bytes: Uint8Array) => Buffer.from(bytes),
      responseDeserialize: same,
    },
  };
}

/** Sends these, then waits for Close and ends with OK. */
export function play(...messages: (Response | Uint8Array)[]): Script {
  return async (call) => {
    call.send(...messages);
    await call.untilClosed();
    call.end();
  };
}

/** Sends these and ends at once. */
export function playThenEnd(ending: Ending | undefined, ...messages: Response[]): Script {
  return (call) => {
    call.send(...messages);
    call.end(ending);
    return Promise.resolve();
  };
}

/** The resume token of event `number`: its cluster time is (1000 + number, 1). */
export function token(number: number): { _data: string } {
  return { _data: `82${(1000 + number).toString(16).toUpperCase().padStart(8, "0")}0000000129295A1004` };
}

/** The position after event `number`. */
export function feedPosition(number: number): {
  position: Uint8Array;
  resumeToken: Uint8Array;
  clusterTime: { seconds: number; increment: number };
} {
  return {
    position: Buffer.from(`P${String(number)}`),
    resumeToken: serialize(token(number)),
    clusterTime: { seconds: 1000 + number, increment: 1 },
  };
}

/** Event `number` as BSON. */
export function event(number: number, pad = 0): Uint8Array {
  return serialize({ _id: token(number), operationType: "insert", n: number, pad: "x".repeat(pad) });
}

/** A document with the same lengths and without UTF-8: each é becomes two bytes that are no text. */
export function notUtf8(document: Uint8Array): Buffer {
  return Buffer.from(Buffer.from(document).toString("latin1").replaceAll("\u00c3\u00a9", "\u00ff\u00fe"), "latin1");
}

interface OpenedOptions {
  readonly at?: number;
  readonly epoch?: bigint;
  readonly atLastAcked?: boolean;
  readonly heartbeatS?: number;
  readonly unackedEventsMax?: bigint;
  /** Documents of a copy so far: the session begins within one. */
  readonly copied?: bigint;
}

export function opened({
  at = 0,
  epoch = 1n,
  atLastAcked = false,
  heartbeatS = 10,
  unackedEventsMax = 0n,
  copied,
}: OpenedOptions = {}): Response {
  return {
    case: "opened",
    value: {
      epoch,
      atLastAcked,
      heartbeatInterval: { seconds: BigInt(heartbeatS) },
      limits: { unackedEventsMax },
      routingKey: "route-1",
      ...(copied !== undefined && { snapshot: { documents: copied } }),
      ...feedPosition(at),
    },
  };
}

export function batch(firstSequence: number, numbers: number[], pad = 0): Response {
  return {
    case: "batch",
    value: {
      firstDeliverySequence: BigInt(firstSequence),
      eventCount: numbers.length,
      bson: Buffer.concat(numbers.map((number) => event(number, pad))),
      ...feedPosition(numbers.at(-1) ?? 0),
    },
  };
}

export function progress(at: number): Response {
  return { case: "progress", value: feedPosition(at) };
}

export function fragments(sequence: number, number: number, size: number, count: number): Response[] {
  const data = event(number, size);
  const step = Math.ceil(data.length / count);
  return Array.from({ length: count }, (_, index) => ({
    case: "eventFragment",
    value: {
      deliverySequence: BigInt(sequence),
      index,
      count,
      data: data.subarray(index * step, (index + 1) * step),
      ...(index + 1 === count && feedPosition(number)),
    },
  }));
}
