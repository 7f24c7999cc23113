/** A session against scripts: windows, acks, reconnects, the watchdog, fences and broken promises. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { constants, createServer, type ServerHttp2Stream } from "node:http2";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { test } from "node:test";

import { serialize } from "bson";

import { SnapshotStatus_State } from "../src/gen/feedmux/v1/feed_pb.js";
import * as feedmux from "../src/index.js";
import {
  batch,
  type Ending,
  fragments,
  opened,
  play,
  playThenEnd,
  progress,
  type Response,
  notUtf8,
  type Script,
  ScriptedServer,
  token,
} from "./scripted-server.js";

const QUICK = { backoffFirstMs: 10, backoffMostMs: 50, ackIntervalMs: 20, closeTimeoutMs: 30_000 };
const LIMIT = { timeout: 60_000 };

interface Numbered {
  readonly n: number;
}

async function serving(
  scripts: Script[],
  work: (client: feedmux.Client, server: ScriptedServer) => Promise<void>,
): Promise<void> {
  await using server = await ScriptedServer.start(scripts);
  await using client = new feedmux.Client(server.address, { apiKey: "key", session: QUICK });
  await work(client, server);
}

async function take(session: feedmux.Session<Numbered>, count: number): Promise<number[]> {
  const taken: number[] = [];
  while (taken.length < count) {
    const event = await session.next();
    assert.ok(event, "the session was closed");
    taken.push(event.document.n);
  }
  return taken;
}

function range(first: number, count: number): number[] {
  return Array.from({ length: count }, (_, index) => first + index);
}

async function open(client: feedmux.Client, options?: feedmux.OpenOptions): Promise<feedmux.Session<Numbered>> {
  return await client.subscription("s").open<Numbered>(options);
}

test("opens, iterates, acks and closes", LIMIT, async () => {
  const script: Script = async (call) => {
    call.send(opened({ epoch: 2n ** 60n + 1n }), batch(1, [1, 2]), batch(3, [3]));
    await call.untilAcked(2);
    call.send({ case: "committed", value: { deliverySequence: 2n, position: Buffer.from("P2") } });
    await call.untilClosed();
    call.end();
  };
  await serving([script], async (client, server) => {
    const session = await open(client);
    assert.equal(session.epoch, 2n ** 60n + 1n);
    assert.equal(session.position.toString(), "P0");
    const seen = [];
    for await (const event of session) {
      seen.push([event.document.n, event.sequence, event.resumeToken]);
      if (seen.length === 2) {
        assert.equal(session.position.toString(), "P2");
        session.ack(event);
      }
      if (seen.length === 3) {
        break;
      }
    }
    assert.deepEqual(
      seen,
      [1, 2, 3].map((number) => [number, number, token(number)]),
    );
    while (session.committed.toString() !== "P2") {
      await sleep(5);
    }
    session.ack();
    await session.close();
    const call = await server.call(0);
    assert.equal(call.open.target.value, "s");
    assert.equal(call.open.format, 1);
    assert.ok(call.open.instanceId);
    assert.equal(call.open.lastAcked, undefined);
    assert.deepEqual([call.open.credit?.events, call.open.credit?.bytes], [16_384n, 8n * 1024n * 1024n]);
    assert.equal(call.metadata["authorization"], "Bearer key");
    assert.deepEqual(call.acks, [2, 3]);
    assert.ok(call.isClosed);
    assert.equal(await session.next(), undefined);
    assert.ok(session.closed);
  });
});

test("positions move with what was handed out", LIMIT, async () => {
  await serving([play(opened(), batch(1, [1, 2]), progress(7))], async (client) => {
    await using session = await open(client);
    assert.deepEqual(await take(session, 1), [1]);
    await sleep(50);
    assert.deepEqual(session.resumeToken, token(1));
    assert.equal(session.position.toString(), "P0");
    assert.equal(session.progress.position.toString(), "P0");
    assert.deepEqual(await take(session, 1), [2]);
    assert.equal(session.position.toString(), "P7", "also before anybody asks for the progress");
    assert.equal(session.progress.position.toString(), "P7");
    assert.deepEqual(session.resumeToken, token(7));
    assert.deepEqual([session.clusterTime?.t, session.clusterTime?.i], [1007, 1]);
    assert.equal(await session.tryNext(), undefined);
    await assert.rejects(session.next({ signal: AbortSignal.timeout(10) }), { name: "TimeoutError" });
  });
});

test("a token that the server omits is that of the event", LIMIT, async () => {
  const message = batch(1, [1, 2]);
  assert.ok(message.case === "batch");
  message.value.resumeToken = Buffer.alloc(0);
  await serving([play(opened(), message)], async (client) => {
    await using session = await open(client);
    assert.deepEqual(await take(session, 2), [1, 2]);
    assert.deepEqual(session.resumeToken, token(2));
    assert.equal(session.position.toString(), "P2");
  });
});

test("a wait that was given up loses nothing", LIMIT, async () => {
  const script: Script = async (call) => {
    call.send(opened());
    await call.untilClosed();
    call.end();
  };
  await serving([script], async (client, server) => {
    await using session = await open(client);
    const stop = new AbortController();
    const waiting = session.next({ signal: stop.signal });
    stop.abort(new Error("enough"));
    await assert.rejects(waiting, { message: "enough" });
    const two = Promise.all([session.next(), session.next()]);
    (await server.call(0)).send(batch(1, [1, 2]));
    assert.deepEqual(
      (await two).map((event) => event?.document.n),
      [1, 2],
    );
  });
});

test("a misspelt option of a session's methods is named, and changes nothing", LIMIT, async () => {
  await serving([play(opened(), batch(1, [1]))], async (client) => {
    await using session = await open(client);
    const misspelt = (unknown: string, known: string): object => ({
      name: "TypeError",
      message: new RegExp(`there is no "${unknown}"; there are ${known}`),
    });
    await assert.rejects(session.next({ timeoutMs: 200 } as never), misspelt("timeoutMs", "signal"));
    await assert.rejects(session.batches({ timeoutMs: 200 } as never).next(), misspelt("timeoutMs", "signal"));
    await assert.rejects(session.close({ timeout: 200 } as never), misspelt("timeout", "timeoutMs"));
    await assert.rejects(session.close({ timeoutMs: "200" as never }), TypeError);
    assert.deepEqual(await take(session, 1), [1]);
  });
});

test("credit is refilled as events are taken", LIMIT, async () => {
  const batches = range(0, 4).map((each) => batch(1 + 2 * each, [1 + 2 * each, 2 + 2 * each]));
  await serving([play(opened(), ...batches)], async (client, server) => {
    await using session = await open(client, { windowEvents: 8 });
    const call = await server.call(0);
    await sleep(50);
    assert.equal(call.grantedEvents, 0);
    await take(session, 3); // Two batches are taken.
    await call.until(({ grantedEvents }) => grantedEvents === 4);
    await take(session, 5);
    await call.until(({ grantedEvents }) => grantedEvents === 8);
  });
});

test("acks go at half of the unacked maximum without waiting", LIMIT, async () => {
  await serving([play(opened({ unackedEventsMax: 8n }), batch(1, range(1, 8)))], async (client, server) => {
    await using session = await open(client, { ackIntervalMs: 60_000 });
    await take(session, 4);
    session.ack();
    await (await server.call(0)).untilAcked(4);
  });
});

test("reconnects after the last acked event, without repeats", LIMIT, async () => {
  const first: Script = async (call) => {
    call.send(opened({ epoch: 5n }), batch(1, [1, 2, 3]), batch(4, [4, 5]));
    await call.untilAcked(2);
    call.end({ status: "UNAVAILABLE", reason: "DRAINING", retryAfterMs: 10 });
  };
  const second = play(opened({ at: 2, epoch: 6n, atLastAcked: true }), batch(1, [3, 4, 5, 6]), batch(5, [7]));
  const notices: feedmux.Notice[] = [];
  await serving([first, second], async (client, server) => {
    await using session = await open(client, { onNotice: (notice) => notices.push(notice) });
    assert.deepEqual(await take(session, 2), [1, 2]);
    session.ack();
    assert.deepEqual(await take(session, 2), [3, 4]);
    const call = await server.call(1);
    assert.equal(call.open.lastAcked?.place.case, "resumeToken");
    assert.equal(call.open.lastAcked.epoch, 5n);
    assert.equal(call.open.instanceId, (await server.call(0)).open.instanceId);
    assert.equal(call.metadata["x-feedmux-route"], "route-1");
    session.ack();
    await call.untilAcked(2);
    assert.deepEqual(await take(session, 3), [5, 6, 7]);
    session.ack();
    await call.untilAcked(5);
    assert.equal(session.epoch, 6n);
  });
  assert.deepEqual(
    notices.map(({ kind }) => kind),
    ["disconnected"],
  );
});

test("a stream that ends without a reason is opened again", LIMIT, async () => {
  const scripts = [playThenEnd(undefined, opened(), batch(1, [1])), play(opened(), batch(1, [1, 2]))];
  await serving(scripts, async (client) => {
    await using session = await open(client, { onNotice: () => undefined });
    assert.deepEqual(await take(session, 2), [1, 2]);
  });
});

test("silence is noticed and the stream opened again", LIMIT, async () => {
  const mute: Script = async (call) => {
    call.send(opened({ heartbeatS: 1 }));
    await call.cancelled;
  };
  await serving([mute, play(opened(), batch(1, [1]))], async (client, server) => {
    await using session = await open(client, { heartbeatMs: 1000, onNotice: () => undefined });
    const began = performance.now();
    assert.deepEqual(await take(session, 1), [1]);
    assert.ok(performance.now() - began > 2000);
    assert.equal(server.calls.length, 2);
  });
});

test("a seek forgets what is unacked and drops what was not handed out", LIMIT, async () => {
  const sought: Script = async (call) => {
    call.send(opened(), batch(1, [1, 2]), batch(3, [3]));
    await call.untilAcked(1);
    call.end({ status: "ABORTED", reason: "FENCED", metadata: { cause: "SEEK" } });
  };
  const again: Script = async (call) => {
    assert.equal(call.open.lastAcked, undefined);
    call.send(opened({ epoch: 2n }), batch(1, [1, 2]));
    await call.untilClosed();
    call.end();
  };
  await serving([sought, again], async (client, server) => {
    await using session = await open(client, { onNotice: () => undefined });
    await take(session, 1);
    session.ack();
    await server.call(1);
    while (session.epoch !== 2n) {
      await sleep(5);
    }
    assert.deepEqual(await take(session, 2), [1, 2]);
    session.ack();
    await (await server.call(1)).untilAcked(2);
  });
});

test("a seek while disconnected is told as a rewind", LIMIT, async () => {
  const first: Script = async (call) => {
    call.send(opened({ at: 4 }), batch(1, [5, 6]));
    await call.untilAcked(1);
    call.end({ status: "UNAVAILABLE" });
  };
  const notices: feedmux.Notice[] = [];
  await serving([first, play(opened({ at: 1, epoch: 2n }), batch(1, [2, 5, 6]))], async (client) => {
    await using session = await open(client, { onNotice: (notice) => notices.push(notice) });
    await take(session, 1);
    session.ack();
    while (session.epoch !== 2n) {
      await sleep(5);
    }
    assert.deepEqual(await take(session, 3), [2, 5, 6]);
  });
  const rewound = notices.find((notice) => notice.kind === "rewound");
  assert.deepEqual([rewound?.beginsAt.t, rewound?.hadReached.t], [1001, 1005]);
});

const FINAL: [
  feedmux.ErrorFacts & { status: "ABORTED" | "OUT_OF_RANGE" | "UNAUTHENTICATED" | "INTERNAL" },
  typeof feedmux.FeedmuxError,
][] = [
  [{ status: "ABORTED", reason: "FENCED", metadata: { cause: "TAKEOVER" } }, feedmux.FencedError],
  [{ status: "ABORTED", reason: "FENCED", metadata: { cause: "DELETE" } }, feedmux.SubscriptionNotFoundError],
  [{ status: "OUT_OF_RANGE", reason: "HISTORY_LOST", metadata: { oldest_time: "t" } }, feedmux.HistoryLostError],
  [{ status: "UNAUTHENTICATED", reason: "UNAUTHENTICATED", metadata: {} }, feedmux.UnauthenticatedError],
  [{ status: "INTERNAL", reason: "INTERNAL", metadata: { correlation_id: "c" } }, feedmux.InternalError],
];
for (const [facts, kind] of FINAL) {
  test(`what only the user can decide ends the session, behind its events: ${kind.name}`, LIMIT, async () => {
    // Many small messages and the status in one piece: none of them may be lost.
    const batches = range(1, 50).map((number) => batch(number, [number]));
    const ending = { status: facts.status, reason: facts.reason ?? "", metadata: { ...facts.metadata } };
    await serving([playThenEnd(ending, opened(), ...batches)], async (client, server) => {
      await using session = await open(client);
      assert.deepEqual(await take(session, 50), range(1, 50));
      for (let times = 0; times < 2; times++) {
        await assert.rejects(session.next(), (error) => {
          assert.ok(error instanceof kind);
          assert.equal(error.constructor, kind);
          assert.deepEqual(error.metadata, facts.metadata);
          return true;
        });
      }
      assert.ok(session.closed);
      assert.equal(server.calls.length, 1);
    });
  });
}

test("open throws what the server says", LIMIT, async () => {
  const busy = playThenEnd({
    status: "FAILED_PRECONDITION",
    reason: "SUBSCRIPTION_BUSY",
    metadata: { owner: "other" },
  });
  await serving([busy], async (client) => {
    await assert.rejects(open(client), (error) => {
      assert.ok(error instanceof feedmux.SubscriptionBusyError);
      assert.ok(error instanceof feedmux.FailedPreconditionError);
      assert.deepEqual(error.metadata, { owner: "other" });
      assert.equal(error.message, "SUBSCRIPTION_BUSY: scripted");
      return true;
    });
  });
});

test("open gives up after its timeout", LIMIT, async () => {
  await using client = new feedmux.Client("127.0.0.1:1", { session: { ...QUICK, openTimeoutMs: 200 } });
  await assert.rejects(open(client), feedmux.UnavailableError);
});

test("an invalidated feed says where it ended", LIMIT, async () => {
  const script = playThenEnd({ status: "FAILED_PRECONDITION", reason: "FEED_INVALIDATED" }, opened(), batch(1, [1]));
  await serving([script], async (client) => {
    await using session = await client.feed({ database: "shop" }).open<Numbered>();
    await take(session, 1);
    await assert.rejects(session.next(), (error) => {
      assert.ok(error instanceof feedmux.FeedInvalidatedError);
      assert.equal(error.position.toString(), "P1");
      assert.deepEqual(error.resumeToken, token(1));
      return true;
    });
  });
});

test("an inline feed goes on behind the last batch", LIMIT, async () => {
  const parts = fragments(3, 3, 1000, 2);
  const first = playThenEnd({ status: "UNAVAILABLE" }, opened(), batch(1, [1, 2]), ...parts.slice(0, 1));
  const second = play(opened({ at: 2 }), ...fragments(1, 3, 1000, 2), batch(2, [4]));
  await serving([first, second], async (client, server) => {
    const feed = client.feed({
      database: "shop",
      collection: "orders",
      pipeline: [{ $match: { n: 1 } }],
      fullDocument: "updateLookup",
    });
    await using session = await feed.open<Numbered>({ start: "earliest", onNotice: () => undefined });
    assert.deepEqual(await take(session, 4), [1, 2, 3, 4]);
    session.ack();
    await session.close();
    const [one, two] = [await server.call(0), await server.call(1)];
    assert.equal(one.open.start?.at.case, "earliest");
    assert.ok(one.open.target.case === "feed");
    assert.equal(one.open.target.value.source, "main");
    assert.equal(one.open.target.value.fullDocument, "updateLookup");
    assert.equal(one.open.target.value.pipeline?.notation.case, "bson");
    assert.ok(two.open.start?.at.case === "position");
    assert.equal(Buffer.from(two.open.start.at.value).toString(), "P2");
    assert.deepEqual(two.acks, []);
  });
});

const BROKEN: [string, (Response | Uint8Array)[]][] = [
  ["a batch before Opened", [batch(1, [1])]],
  ["Opened twice", [opened(), opened()]],
  ["not from 1", [opened(), batch(2, [1])]],
  ["a gap", [opened(), batch(1, [1]), batch(3, [3])]],
  ["more events than granted", [opened(), batch(1, range(1, 11))]],
  ["a message over the limit", [opened(), batch(1, [1], 200_000)]],
  ["a fragment that is not the first", [opened(), ...fragments(1, 1, 1000, 3).slice(1, 2)]],
  ["a message between fragments", [opened(), ...fragments(1, 1, 1000, 3).slice(0, 1), progress(1)]],
  ["rubbish", [opened(), Buffer.from("\x12\x05rubbish", "latin1")]],
  [
    "lengths that do not add up",
    [
      opened(),
      { case: "batch", value: { firstDeliverySequence: 1n, eventCount: 2, bson: Buffer.from([5, 0, 0, 0, 0]) } },
    ],
  ],
];
for (const [name, messages] of BROKEN) {
  test(`a server that breaks the protocol: ${name}`, LIMIT, async () => {
    await serving([play(...messages)], async (client, server) => {
      const drain = async (): Promise<void> => {
        await using session = await open(client, { windowEvents: 10, messageBytesMax: 65_536 });
        for await (const event of session) {
          assert.ok(event.document);
        }
      };
      await assert.rejects(drain(), feedmux.ProtocolError);
      assert.equal(server.calls.length, 1);
    });
  });
}

test("bytes over the credit are refused, one overdraft is not", LIMIT, async () => {
  const messages = [opened(), batch(1, [1], 900), batch(2, [2], 900), batch(3, [3], 900)];
  await serving([play(...messages)], async (client) => {
    const session = await open(client, { windowBytes: 1500 });
    await assert.rejects(async () => {
      for (;;) {
        await sleep(20); // Nothing is taken before all have come.
        await session.next();
      }
    }, feedmux.ProtocolError);
  });
});

test("unknown messages and fields are ignored", LIMIT, async () => {
  const unknown = Buffer.from("\xfa\x07\x01x", "latin1");
  await serving([play(opened(), unknown, batch(1, [1]))], async (client) => {
    await using session = await open(client);
    assert.deepEqual(await take(session, 1), [1]);
  });
});

test("batches and events share one position", LIMIT, async () => {
  await serving([play(opened(), batch(1, [1, 2, 3]), batch(4, [4]))], async (client, server) => {
    await using session = await open(client);
    assert.deepEqual(await take(session, 1), [1]);
    const seen = [];
    for await (const each of session.batches()) {
      seen.push(each.documents().map(({ n }) => n));
      session.ack(each);
      if (seen.length === 2) {
        break;
      }
    }
    assert.deepEqual(seen, [[2, 3], [4]]);
    assert.equal(session.position.toString(), "P4");
    await (await server.call(0)).untilAcked(4);
  });
});

test("an event of another session cannot be acked", LIMIT, async () => {
  await serving([play(opened(), batch(1, [1]))], async (client) => {
    await using one = await open(client);
    await using two = await open(client);
    const event = await one.next();
    assert.ok(event);
    assert.throws(() => {
      two.ack(event);
    }, TypeError);
    assert.throws(() => {
      one.ack(undefined as never); // would ack the event that was handed out
    }, /ack\(\) for everything/);
  });
});

test("a signal ends the session at once, also while it opens", LIMIT, async () => {
  const silent: Script = async (call) => {
    await call.cancelled;
  };
  const stop = new AbortController();
  await serving([play(opened()), silent], async (client, server) => {
    const session = await open(client, { signal: stop.signal });
    const waiting = session.next();
    const opening = open(client, { signal: stop.signal });
    await server.call(1);
    stop.abort(new Error("no more"));
    await assert.rejects(waiting, { message: "no more" });
    await assert.rejects(opening, { message: "no more" });
    await (
      await server.call(0)
    ).cancelled;
    await (
      await server.call(1)
    ).cancelled;
    assert.equal((await server.call(0)).isClosed, false);
  });
});

test("close wakes whoever waits", LIMIT, async () => {
  await serving([play(opened())], async (client) => {
    const session = await open(client);
    const waiting = [session.next(), session.batches().next(), session[Symbol.asyncIterator]().next()];
    await session.close({ timeoutMs: Infinity });
    assert.deepEqual(await Promise.all(waiting), [
      undefined,
      { done: true, value: undefined },
      { done: true, value: undefined },
    ]);
  });
});

test("a close that nobody answers ends after its timeout", LIMIT, async () => {
  const deaf: Script = async (call) => {
    call.send(opened());
    await call.cancelled;
  };
  await serving([deaf], async (client, server) => {
    const session = await open(client);
    await assert.rejects(session.close({ timeoutMs: NaN }), RangeError);
    assert.equal(session.closed, false);
    await session.close({ timeoutMs: 100 });
    await (
      await server.call(0)
    ).cancelled;
  });
});

test("a close says once that acks were not confirmed", LIMIT, async () => {
  const confirms: Script = async (call) => {
    call.send(opened(), batch(1, [1]));
    await call.untilClosed();
    call.send({ case: "committed", value: { deliverySequence: 1n, position: Buffer.from("P1") } });
    call.end();
  };
  const cases: [Script, number][] = [
    [confirms, 0],
    [play(opened(), batch(1, [1])), 1],
    [playThenEnd({ status: "FAILED_PRECONDITION", reason: "FEED_INVALIDATED" }, opened(), batch(1, [1])), 1],
  ];
  for (const [script, warnings] of cases) {
    const said: Error[] = [];
    const listen = (warning: Error): unknown => said.push(warning);
    process.on("warning", listen);
    await serving([script], async (client) => {
      const session = await open(client);
      const event = await session.next();
      if (script === cases[2]?.[0]) {
        await assert.rejects(session.next(), feedmux.FeedInvalidatedError);
      }
      assert.ok(event);
      session.ack(event);
      await session.close();
      await session.close();
    });
    await new Promise(setImmediate);
    process.off("warning", listen);
    assert.equal(
      said.filter(({ message }) => message.includes("before the server confirmed all acks")).length,
      warnings,
    );
  }
});

test("acks of what the session was moved past need no confirmation", LIMIT, async () => {
  const endings: Ending[] = [
    { status: "ABORTED", reason: "FENCED", metadata: { cause: "SEEK" } },
    { status: "UNAVAILABLE" },
  ];
  for (const ending of endings) {
    const said: string[] = [];
    const listen = (warning: Error): unknown => said.push(warning.message);
    process.on("warning", listen);
    let goOn: () => void = () => undefined;
    const taken = new Promise<void>((resolve) => (goOn = resolve));
    const first: Script = async (call) => {
      call.send(opened(), batch(1, [1, 2]));
      await taken;
      call.end(ending);
    };
    const second: Script = async (call) => {
      call.send(opened({ at: 5, epoch: 2n }), progress(7));
      await call.untilClosed();
      call.end();
    };
    await serving([first, second], async (client) => {
      const session = await open(client, { onNotice: () => undefined });
      await take(session, 2);
      goOn();
      while (session.position.toString() !== "P7") {
        await sleep(5);
      }
      session.ack();
      await session.close();
    });
    await new Promise(setImmediate);
    process.off("warning", listen);
    assert.deepEqual(said, []);
  }
});

test("an ack after a close is an error, one during the close is not", LIMIT, async () => {
  const confirms: Script = async (call) => {
    call.send(opened(), batch(1, [1, 2]));
    await call.untilClosed();
    await call.untilAcked(1);
    call.send({ case: "committed", value: { deliverySequence: 1n, position: Buffer.from("P1") } });
    call.end();
  };
  for (const close of [
    (session: feedmux.Session<Numbered>) => session.close(),
    (_: feedmux.Session<Numbered>, client: feedmux.Client) => client.close(),
  ]) {
    await serving([confirms], async (client, server) => {
      const session = await open(client);
      const [first, second] = [await session.next(), await session.next()];
      assert.ok(first && second);
      const closing = close(session, client);
      session.ack(first);
      await closing;
      assert.equal(session.committed.toString(), "P1");
      session.ack(first);
      for (const acked of [[second], [second.batch], []] as Parameters<typeof session.ack>[]) {
        assert.throws(() => {
          session.ack(...acked);
        }, feedmux.SessionClosedError);
      }
      await session.close();
      assert.deepEqual((await server.call(0)).acks, [1]);
    });
  }
  await serving([play(opened(), batch(1, [1]))], async (client) => {
    const session = await client.feed().open<Numbered>();
    await take(session, 1);
    await session.close();
    assert.throws(() => {
      session.ack();
    }, feedmux.SessionClosedError);
  });
});

test("a close while reconnecting does not wait", LIMIT, async () => {
  const never: Script = async (call) => {
    await call.cancelled;
  };
  await serving([playThenEnd({ status: "UNAVAILABLE" }, opened()), never], async (client, server) => {
    const session = await open(client, { onNotice: () => undefined, closeTimeoutMs: 60_000 });
    const call = await server.call(1);
    await session.close();
    await call.cancelled;
  });
});

test("a close while reconnecting brings the acks home", LIMIT, async () => {
  const first: Script = (call) => {
    call.send(opened(), batch(1, [1, 2]));
    call.end({ status: "UNAVAILABLE", reason: "DRAINING", retryAfterMs: 900 });
    return Promise.resolve();
  };
  const second: Script = async (call) => {
    call.send(opened({ epoch: 2n }), batch(1, [1, 2]));
    await call.untilClosed();
    call.end();
  };
  let disconnected: () => void = () => undefined;
  const away = new Promise<void>((resolve) => {
    disconnected = resolve;
  });
  await serving([first, second], async (client, server) => {
    const session = await open(client, { onNotice: disconnected });
    await take(session, 2);
    void session.next(); // Hears of the disconnect.
    await away;
    session.ack();
    await session.close();
    const { open: again, isClosed } = await server.call(1);
    assert.ok(isClosed);
    assert.ok(again.lastAcked?.place.case === "position");
    assert.equal(Buffer.from(again.lastAcked.place.value).toString(), "P2");
  });
});

test("acks in the Open of a closing session are confirmed", LIMIT, async () => {
  const said: string[] = [];
  const listen = (warning: Error): unknown => said.push(warning.message);
  process.on("warning", listen);
  const first: Script = (call) => {
    call.send(opened(), batch(1, [1, 2, 3]));
    call.end({ status: "UNAVAILABLE", retryAfterMs: 900 });
    return Promise.resolve();
  };
  let disconnected: () => void = () => undefined;
  const away = new Promise<void>((resolve) => (disconnected = resolve));
  await serving([first, play(opened({ at: 2, epoch: 2n, atLastAcked: true }))], async (client, server) => {
    const session = await open(client, { onNotice: disconnected });
    const events = [await session.next(), await session.next(), await session.next()];
    void session.next(); // Hears of the disconnect.
    await away;
    assert.ok(events[1]);
    session.ack(events[1]);
    await session.close();
    assert.equal((await server.call(1)).open.lastAcked?.place.case, "resumeToken");
  });
  await new Promise(setImmediate);
  process.off("warning", listen);
  assert.deepEqual(said, []);
});

test("reconnecting gives up when told to", LIMIT, async () => {
  const away = playThenEnd({ status: "UNAVAILABLE", reason: "STATE_UNAVAILABLE", retryAfterMs: 50 });
  await serving([playThenEnd({ status: "UNAVAILABLE" }, opened()), away], async (client) => {
    await using session = await open(client, { reconnectTimeoutMs: 200, onNotice: () => undefined });
    await assert.rejects(session.next(), feedmux.UnavailableError);
  });
});

test("an expired token is asked for again, and a function that fails is asked again", LIMIT, async () => {
  const tokens = ["one", undefined, "two"];
  const expired = playThenEnd({ status: "UNAUTHENTICATED", reason: "UNAUTHENTICATED" }, opened());
  await using server = await ScriptedServer.start([expired, play(opened(), batch(1, [1]))]);
  const next = async (): Promise<string> => {
    await sleep(1);
    const token = tokens.shift();
    assert.ok(token, "no token now");
    return token;
  };
  await using client = new feedmux.Client(server.address, { token: next, session: QUICK });
  await using session = await open(client, { onNotice: () => undefined });
  assert.deepEqual(await take(session, 1), [1]);
  assert.deepEqual(
    server.calls.map(({ metadata }) => metadata["authorization"]),
    ["Bearer one", "Bearer two"],
  );
});

test("a loop that never waits leaves the event loop its turns", LIMIT, async () => {
  await serving([play(opened(), batch(1, range(1, 400)))], async (client) => {
    await using session = await open(client);
    let turns = 0;
    const ticking = setInterval(() => turns++, 1);
    for await (const event of session) {
      const until = performance.now() + 1;
      while (performance.now() < until); // Work that awaits nothing.
      if (event.sequence === 400) {
        break;
      }
    }
    clearInterval(ticking);
    assert.ok(turns >= 10, `${String(turns)} turns in 400 ms`);
  });
});

test("a client that is closed closes its sessions, acks first", LIMIT, async () => {
  await using server = await ScriptedServer.start([play(opened(), batch(1, [1, 2]))]);
  const client = new feedmux.Client(server.address, { session: { ...QUICK, ackIntervalMs: 60_000 } });
  const session = await open(client);
  await take(session, 2);
  session.ack();
  const waiting = assert.rejects(session.next(), /the client was closed/);
  await client.close();
  assert.deepEqual((await server.call(0)).acks, [2]);
  await waiting;
  await assert.rejects(session.next(), feedmux.SessionClosedError);
  await assert.rejects(async () => {
    for await (const event of session) {
      assert.fail(`event ${String(event.sequence)}`);
    }
  }, feedmux.SessionClosedError);
  assert.equal(session.closed, true);
  await session.close();
  assert.equal(await session.next(), undefined);
  await assert.rejects(open(client), /the client was closed/);
  await assert.rejects(client.subscription("s").get(), /the client was closed/);
});

test("a client that is closed ends what is being opened", LIMIT, async () => {
  await using server = await ScriptedServer.start([play()]);
  const client = new feedmux.Client(server.address, { session: QUICK });
  const opening = assert.rejects(open(client), /the client was closed/);
  await server.call(0);
  await client.close();
  await opening;
});

test("the time-out of opening ends an attempt under way, also while a token function waits", LIMIT, async () => {
  const options = { openTimeoutMs: 50, heartbeatMs: 60_000 };
  await serving([play()], async (client) => {
    await assert.rejects(open(client, options), { name: "UnavailableError", status: "DEADLINE_EXCEEDED" });
  });
  const never = new Promise<string>(() => undefined);
  await using client = new feedmux.Client("127.0.0.1:1", { token: () => never, timeoutMs: 50 });
  await assert.rejects(open(client, options), { name: "UnavailableError" });
  await assert.rejects(client.subscription("s").get(), /the token function has not returned/);
});

test("keys and tokens are sent without white space", LIMIT, async () => {
  for (const options of [{ apiKey: " key\r\n" }, { token: () => "key\n" }]) {
    await using server = await ScriptedServer.start([play(opened())]);
    await using client = new feedmux.Client(server.address, { ...options, session: QUICK });
    await open(client);
    assert.equal(server.calls[0]?.metadata["authorization"], "Bearer key");
  }
});

test("a key that cannot be sent is refused and not quoted", LIMIT, async () => {
  for (const key of [" \n", "two words", "schlüssel"]) {
    assert.throws(
      () => new feedmux.Client("127.0.0.1:1", { apiKey: key }),
      (error: unknown) => error instanceof TypeError && !/schl|words/.test(error.message),
    );
    await using client = new feedmux.Client("127.0.0.1:1", { token: () => key });
    await assert.rejects(
      client.subscription("s").get(),
      (error: unknown) => error instanceof feedmux.UnavailableError && !/schl|words/.test(error.message),
    );
  }
  for (const tls of [{ cert: "PEM" }, { key: "PEM" }]) {
    assert.throws(() => new feedmux.Client("127.0.0.1:1", { tls }), /cert and key/);
  }
});

test("a batch within the loop over events is not handed out twice", LIMIT, async () => {
  await serving([play(opened(), batch(1, [1, 2, 3, 4]), batch(5, [5]))], async (client) => {
    await using session = await open(client);
    const seen: number[] = [];
    for await (const event of session) {
      seen.push(event.document.n);
      if (event.sequence === 2) {
        for await (const rest of session.batches()) {
          seen.push(...rest.documents().map(({ n }) => -n));
          break;
        }
      }
      if (event.sequence === 5) {
        break;
      }
    }
    assert.deepEqual(seen, [1, 2, -3, -4, 5]);
  });
});

test("a session is not closed before what came ahead of its end was handed out", LIMIT, async () => {
  const busy = playThenEnd({ status: "FAILED_PRECONDITION", reason: "SUBSCRIPTION_BUSY" }, opened(), batch(1, [1, 2]));
  await serving([busy], async (client) => {
    await using session = await open(client);
    await take(session, 1);
    assert.equal(session.closed, false);
    await take(session, 1);
    await assert.rejects(session.next(), feedmux.SubscriptionBusyError);
    assert.equal(session.closed, true);
  });
});

test("a skipped notice is a warning without onNotice, and forgets nothing", LIMIT, async () => {
  const value: Extract<Response, { case: "notice" }>["value"] = {
    kind: {
      case: "skipped",
      value: {
        from: { seconds: 1001, increment: 1 },
        to: { seconds: 1005, increment: 2 },
        fromPosition: Buffer.from("P1"),
        toPosition: Buffer.from("P5"),
      },
    },
  };
  const warned = new Promise<Error & { readonly detail?: string }>((resolve) => {
    const listen = (warning: Error): void => {
      if (warning.name === "FeedmuxNotice") {
        process.off("warning", listen);
        resolve(warning);
      }
    };
    process.on("warning", listen);
  });
  await serving([play(opened(), batch(1, [1]), { case: "notice", value }, batch(2, [2]))], async (client, server) => {
    await using session = await open(client);
    assert.deepEqual(await take(session, 2), [1, 2]);
    const { message, detail } = await warned;
    assert.equal(
      message,
      "feedmux session: another session or a seek moved the stored position from 1001.1 to 1005.2: this session does " +
        "not deliver the events in between",
    );
    assert.match(detail ?? "", /"hadReachedPosition":"UDE=","beginsAtPosition":"UDU="/);
    session.ack();
    await (await server.call(0)).untilAcked(2);
  });
});

test("next within onNotice takes an event, and the outer call the one after it", LIMIT, async () => {
  const value = { kind: { case: "degraded" as const, value: { dependency: "state", unavailable: true } } };
  const notice: Response = { case: "notice", value };
  const messages = [opened(), batch(1, [1]), notice, batch(2, [2, 3]), notice, notice, batch(4, [4, 5, 6])];
  await serving([play(...messages)], async (client, server) => {
    const inner: Promise<feedmux.ChangeEvent<Numbered> | undefined>[] = [];
    await using session = await open(client, {
      onNotice: () => {
        inner.push(session.next());
      },
    });
    const outer = await take(session, 3);
    const within: number[] = [];
    while (within.length < inner.length) {
      within.push((await inner[within.length])?.document.n ?? 0);
    }
    assert.equal(within.length, 3);
    assert.deepEqual([...outer, ...within].sort(), [1, 2, 3, 4, 5, 6]);
    session.ack();
    await (await server.call(0)).untilAcked(6);
  });
});

test("an asynchronous onNotice is awaited, and its rejection is that of the call", LIMIT, async () => {
  const value = { kind: { case: "degraded" as const, value: { dependency: "state", unavailable: true } } };
  const notice: Response = { case: "notice", value };
  const messages = [1, 2, 3, 4].flatMap((number) => [notice, batch(number, [number])]);
  await serving([play(opened(), ...messages)], async (client) => {
    const said: unknown[] = [];
    await using session = await open(client, {
      onNotice: async () => {
        await sleep(0);
        said.push("notice");
        if (said.length === 7) {
          throw new Error("nobody listens");
        }
      },
    });
    said.push((await session.next())?.document.n);
    for await (const event of session) {
      said.push(event.document.n);
      break;
    }
    for await (const taken of session.batches()) {
      said.push(taken.documents()[0]?.n);
      break;
    }
    await assert.rejects(async () => {
      while ((await session.tryNext()) === undefined);
    }, /nobody listens/);
    said.push(...(await take(session, 1)));
    assert.deepEqual(said, ["notice", 1, "notice", 2, "notice", 3, "notice", 4]);
  });
});

test("a connection that its peer ends because of too many pings is lost, and no quota is exceeded", LIMIT, async () => {
  let calls = 0;
  const proxy = createServer();
  proxy.on("stream", (stream: ServerHttp2Stream) => {
    calls++;
    stream.on("error", () => undefined);
    stream.respond({ ":status": 200, "content-type": "application/grpc" });
    stream.session?.goaway(constants.NGHTTP2_ENHANCE_YOUR_CALM, 0, Buffer.from("too_many_pings"));
  });
  await once(proxy.listen(0, "127.0.0.1"), "listening");
  const { port } = proxy.address() as AddressInfo;
  await using client = new feedmux.Client(`127.0.0.1:${String(port)}`, { session: QUICK });
  await assert.rejects(client.subscription("s").get(), feedmux.UnavailableError);
  await assert.rejects(open(client, { openTimeoutMs: 500 }), feedmux.UnavailableError);
  assert.ok(calls > 2, "a session tries again");
  proxy.close();
});

test("an earlier ack after a later one changes nothing", LIMIT, async () => {
  await serving([play(opened(), batch(1, [1, 2, 3]))], async (client, server) => {
    const session = await open(client);
    const [first, , last] = [await session.next(), await session.next(), await session.next()];
    assert.ok(first && last);
    session.ack(last);
    session.ack(first);
    await session.close();
    assert.deepEqual((await server.call(0)).acks, [3]);
  });
});

test("an event that cannot be decoded fails alone, and the session goes on", LIMIT, async () => {
  const json = [1, 2, 3].map((n) => (n === 2 ? "{" : JSON.stringify({ _id: token(n), n })));
  const texts: Response = { case: "batch", value: { firstDeliverySequence: 1n, eventCount: 3, json } };
  const windowBytes = json.join("").length - 1; // The batch is more, and kept as tokens.
  const first = playThenEnd({ status: "UNAVAILABLE" }, opened(), texts);
  const second: Script = async (call) => {
    call.send(opened({ epoch: 2n }), texts);
    await call.untilClosed();
    call.end();
  };
  await serving([first, second], async (client, server) => {
    const options = { format: "extendedJsonRelaxed", windowBytes, onNotice: () => undefined } as const;
    await using session = await open(client, options);
    const seen: unknown[] = [];
    for await (const event of session) {
      try {
        seen.push(event.document.n);
      } catch (error) {
        assert.ok(error instanceof feedmux.ProtocolError);
        seen.push("broken");
      }
      if (seen.length === 4) {
        break;
      }
    }
    assert.deepEqual(seen, [1, "broken", 3, "broken"], "without a token it is no repeat");
    session.ack();
    await (await server.call(1)).untilAcked(3);
  });
});

test("an event with a text that is not UTF-8 is delivered once, and can be acked", LIMIT, async () => {
  const bytes = [1, 2, 3].map((n) => notUtf8(serialize({ text: "é", _id: token(n), n })));
  const message: Response = {
    case: "batch",
    value: { firstDeliverySequence: 1n, eventCount: 3, bson: Buffer.concat(bytes) },
  };
  const scripts = [
    playThenEnd({ status: "UNAVAILABLE" }, opened(), message),
    play(opened({ epoch: 2n }), message, batch(4, [4])),
  ];
  await serving(scripts, async (client, server) => {
    await using session = await open(client, { onNotice: () => undefined });
    const tokens: unknown[] = [];
    for await (const event of session) {
      tokens.push(event.resumeToken);
      if (event.sequence < 4) {
        assert.throws(() => event.document, { name: "BSONError" });
      } else {
        break;
      }
    }
    assert.deepEqual(tokens, [1, 2, 3, 4].map(token));
    session.ack();
    await (await server.call(1)).untilAcked(4);
  });
});

test("a session dropped without close ends its call", LIMIT, async () => {
  const { gc } = globalThis;
  assert.ok(gc, "run with --expose-gc");
  const dropped: Script = async (call) => {
    call.send(opened(), batch(1, [1]));
    await call.cancelled;
  };
  await serving([dropped], async (client, server) => {
    await (async () => {
      await take(await open(client), 1);
    })();
    const call = await server.call(0);
    while (!call.isCancelled) {
      gc();
      await sleep(10);
    }
  });
});

test("a copy is as far as the notices that were handed out say", LIMIT, async () => {
  const notice = (state: SnapshotStatus_State, generation: bigint): Response => ({
    case: "notice",
    value: { kind: { case: "snapshot", value: { state, documents: 3n, generation } } },
  });
  const { RUNNING, DONE } = SnapshotStatus_State;
  const script = play(
    opened({ copied: 2n }),
    notice(RUNNING, 0n),
    batch(1, [1]),
    notice(DONE, 0n),
    batch(2, [2]),
    notice(RUNNING, 8n),
    batch(3, [3]),
  );
  await serving([script], async (client) => {
    await using session = await open(client, { onNotice: () => undefined });
    const copying = () => session.copying;
    assert.equal(copying()?.documents, 2);
    assert.deepEqual(await take(session, 1), [1]);
    assert.equal(copying()?.documents, 3);
    assert.deepEqual(await take(session, 1), [2]);
    assert.equal(copying(), undefined);
    assert.deepEqual(await take(session, 1), [3]);
    assert.equal(copying()?.generation, 8);
  });
});
