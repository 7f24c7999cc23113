/** The time-outs of opening and reconnecting, in virtual time and without a network. */

import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { test, type TestContext } from "node:test";

import { create, toBinary } from "@bufbuild/protobuf";
import { Metadata, status as Status } from "@grpc/grpc-js";

import { SubscribeResponseSchema } from "../src/gen/feedmux/v1/change_feed_pb.js";
import type { Link } from "../src/link.js";
import { sessionOptions } from "../src/options.js";
import { Runner } from "../src/runner.js";
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

/** A runner whose time the test moves. `streams` are those it has begun; without an answer it waits for a token. */
function running(context: TestContext, hasToken = true): { runner: Runner; streams: Stream[] } {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const streams: Stream[] = [];
  const link = {
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
  return { runner: new Runner(link as unknown as Link, opening, options), streams };
}

/** Whatever is ready has run. */
async function turn(): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
}

function endOf(runner: Runner): Error | undefined {
  return runner.inbox.ended?.error;
}

for (const hasToken of [true, false]) {
  test(
    `opening ends an attempt under way, ${hasToken ? "at a silent server" : "without a token"}`,
    LIMIT,
    async (context) => {
      const { runner, streams } = running(context, hasToken);
      const failed = assert.rejects(runner.opened, {
        name: "UnavailableError",
        status: "DEADLINE_EXCEEDED",
        details: "the server has not opened the session within 10 s",
      });
      await turn();
      context.mock.timers.tick(TIMEOUT_MS);
      await failed;
      await runner.done;
      assert.equal(streams.length, 1);
    },
  );
}

test("opening that took too long fails with the error of an earlier attempt", LIMIT, async (context) => {
  const { runner, streams } = running(context);
  const failed = assert.rejects(runner.opened, { details: "not yet" });
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
  const { runner, streams } = running(context);
  await turn();
  streams[0]?.open();
  await runner.opened;
  context.mock.timers.tick(2 * TIMEOUT_MS);
  await turn();
  assert.equal(endOf(runner), undefined);
  streams[0]?.lose("gone");
  await turn();
  context.mock.timers.tick(BACKOFF_MS);
  await turn();
  assert.equal(streams.length, 2);
  context.mock.timers.tick(TIMEOUT_MS);
  await runner.done;
  assert.match(String(endOf(runner)), /gone/);
});
