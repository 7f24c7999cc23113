/** The time-outs of opening and reconnecting, in virtual time and without a network. */

import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { test, type TestContext } from "node:test";

import { create, toBinary } from "@bufbuild/protobuf";
import { Metadata, status as Status } from "@grpc/grpc-js";

import { SubscribeResponseSchema } from "../src/gen/feedmux/v1/change_feed_pb.js";
import type { Transport } from "../src/transport.js";
import { sessionOptions } from "../src/options.js";
import { Connection } from "../src/connection.js";
import type { Call } from "../src/stream.js";
import { opened } from "./scripted-server.js";

const LIMIT = { timeout: 60_000 };
const BACKOFF_MS = 50;
const TIMEOUT_MS = 10_000;

/** A stream on which the test plays the server. */
class Stream extends EventEmitter {
  write(): boolean {
    return true;
  }

  cancel(): void {
    this.removeAllListeners();
  }

  open(): void {
    const message = create(SubscribeResponseSchema, { message: opened() });
    this.emit("data", Buffer.from(toBinary(SubscribeResponseSchema, message)));
  }

  lose(details: string): void {
    this.emit("status", { code: Status.UNAVAILABLE, details, metadata: new Metadata() });
    this.emit("end");
  }
}

/** A connection whose time the test moves. `streams` are those it has begun; without an answer it waits for a token. */
function running(context: TestContext, hasToken = true): { connection: Connection; streams: Stream[] } {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const streams: Stream[] = [];
  const transport = {
    renewsToken: false,
    leave: () => undefined,
    subscribe: async () => {
      const stream = new Stream();
      streams.push(stream);
      return await (hasToken ? Promise.resolve(stream as unknown as Call) : new Promise<Call>(() => undefined));
    },
  };
  const options = sessionOptions({
    openTimeoutMs: TIMEOUT_MS,
    reconnectTimeoutMs: TIMEOUT_MS,
    heartbeatMs: 60_000,
    backoffFirstMs: BACKOFF_MS,
    backoffMostMs: BACKOFF_MS,
  });
  const opening = { subscription: "s", takeover: false, instanceId: "i" };
  return { connection: new Connection(transport as unknown as Transport, opening, options), streams };
}

/** Whatever is ready has run. */
async function turn(): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
}

function endOf(connection: Connection): Error | undefined {
  return connection.buffer.ended?.error;
}

for (const hasToken of [true, false]) {
  test(
    `opening ends an attempt under way, ${hasToken ? "at a silent server" : "without a token"}`,
    LIMIT,
    async (context) => {
      const { connection, streams } = running(context, hasToken);
      const failed = assert.rejects(connection.opened, {
        name: "UnavailableError",
        status: "DEADLINE_EXCEEDED",
        details: "the server has not opened the session within 10 s",
      });
      await turn();
      context.mock.timers.tick(TIMEOUT_MS);
      await failed;
      await connection.done;
      assert.equal(streams.length, 1);
    },
  );
}

test("opening that took too long fails with the error of an earlier attempt", LIMIT, async (context) => {
  const { connection, streams } = running(context);
  const failed = assert.rejects(connection.opened, { details: "not yet" });
  await turn();
  streams[0]?.lose("not yet");
  await turn();
  context.mock.timers.tick(BACKOFF_MS);
  await turn();
  context.mock.timers.tick(TIMEOUT_MS);
  await failed;
  assert.equal(streams.length, 2);
});

test("reconnecting ends an attempt under way; a stream that is open is never ended", LIMIT, async (context) => {
  const { connection, streams } = running(context);
  await turn();
  streams[0]?.open();
  await connection.opened;
  context.mock.timers.tick(2 * TIMEOUT_MS);
  await turn();
  assert.equal(endOf(connection), undefined);
  streams[0]?.lose("gone");
  await turn();
  context.mock.timers.tick(BACKOFF_MS);
  await turn();
  assert.equal(streams.length, 2);
  context.mock.timers.tick(TIMEOUT_MS);
  await connection.done;
  assert.match(String(endOf(connection)), /gone/);
});
