/** The unary calls: what goes up, what comes back, deadlines and cancelling. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { Binary, BSONRegExp, BSONSymbol, Double, Long, serialize, Timestamp } from "bson";

import { stagesText } from "../src/extended-json.js";
import * as feedmux from "../src/index.js";
import {
  ExplainRequestSchema,
  ExplainResponseSchema,
  ResolvePositionRequestSchema,
  ResolvePositionResponseSchema,
} from "../src/gen/feedmux/v1/change_feed_pb.js";
import {
  CreateSubscriptionRequestSchema,
  DeleteSubscriptionRequestSchema,
  ListSubscriptionsRequestSchema,
  ListSubscriptionsResponseSchema,
  SeekSubscriptionRequestSchema,
  SubscriptionSchema,
  UpdateSubscriptionRequestSchema,
} from "../src/gen/feedmux/v1/subscriptions_pb.js";
import { ScriptedServer, token, type Unary } from "./scripted-server.js";

const LIMIT = { timeout: 60_000 };

async function answering(unary: Unary, work: (client: feedmux.Client) => Promise<void>): Promise<void> {
  await using server = await ScriptedServer.start([], unary);
  await using client = new feedmux.Client(server.address, { source: "west" });
  await work(client);
}

function subscription(init: MessageInitShape<typeof SubscriptionSchema>): Uint8Array {
  return toBinary(SubscriptionSchema, create(SubscriptionSchema, init));
}

test("a subscription is created from a feed and read back", LIMIT, async () => {
  const create_ = (bytes: Buffer): Uint8Array => {
    const { subscription: asked, start } = fromBinary(CreateSubscriptionRequestSchema, bytes);
    assert.equal(start?.at.case, "startAtOperationTime");
    assert.equal(asked?.onInvalidate, 2);
    return subscription({ ...asked, epoch: 2n ** 62n + 1n, position: Buffer.from("P"), etag: "e" });
  };
  await answering({ "Subscriptions/CreateSubscription": create_ }, async (client) => {
    const feed: feedmux.Feed = {
      database: "shop",
      pipeline: [{ $match: { n: { $gt: 1 } } }],
      fullDocument: "updateLookup",
      collation: { locale: "de" },
      comment: "why",
      batchSize: 7,
    };
    const made = await client.subscription("s").create(feed, {
      start: { operationTime: new Timestamp({ t: 4_000_000_000, i: 4_294_967_295 }) },
      onInvalidate: "continue",
    });
    assert.equal(made.epoch, 2n ** 62n + 1n);
    assert.deepEqual([made.name, made.onInvalidate, made.onHistoryLost, made.etag], ["s", "continue", "fail", "e"]);
    assert.equal(made.feed.source, "west");
    for (const [name, value] of Object.entries(feed)) {
      assert.deepEqual(made.feed[name as keyof feedmux.Feed], value, name);
    }
  });
});

test("a stored filter can be sent again as it was", LIMIT, async () => {
  const filters: [filter: unknown, text?: string][] = [
    [{ s: new BSONRegExp("^a b", "x"), n: 1 }],
    [{ s: new BSONRegExp("(?x)a", "i") }], // no regular expression of JavaScript's
    [{ n: { $gte: new Double(1), $lt: Long.fromNumber(7) } }],
    [{ s: { $in: [new BSONSymbol("a")] } }],
    // Objects would have these in another order.
    [
      new Map<string, unknown>([
        ["10", new Long(1)],
        ["9", new Binary(Buffer.of(1), 128)],
        ["", new BSONRegExp("a", "x")],
      ]),
      '{"10":{"$numberLong":"1"},"9":{"$binary":{"base64":"AQ==","subType":"80"}},"":{"$regularExpression":{"pattern":"a","options":"x"}}}',
    ],
    [
      {
        a: new Map<string, unknown>([
          ["$id", 1],
          ["$ref", "b"],
        ]),
      },
      '{"a":{"$id":{"$numberInt":"1"},"$ref":"b"}}',
    ],
  ];
  for (const [filter, text] of filters) {
    const pipeline = serialize({ pipeline: [{ $match: filter }] });
    const stored = { name: "s", feed: { pipeline: { notation: { case: "bson" as const, value: pipeline } } } };
    let sent: Uint8Array | string | undefined;
    const unary: Unary = {
      "Subscriptions/GetSubscription": () => subscription(stored),
      "Subscriptions/UpdateSubscription": (bytes) => {
        sent = fromBinary(UpdateSubscriptionRequestSchema, bytes).subscription?.feed?.pipeline?.notation.value;
        return subscription(stored);
      },
    };
    await answering(unary, async (client) => {
      const { feed } = await client.subscription("s").get();
      await client.subscription("s").update({ feed: { ...feed, fullDocument: "updateLookup" } });
      if (text === undefined) {
        assert.deepEqual(Buffer.from(sent as Uint8Array), Buffer.from(pipeline));
      } else {
        assert.equal(sent, `[{"$match":${text}}]`);
      }
    });
  }
});

test("the text of a stored filter that JSON cannot say is one that the server rejects", () => {
  const name = (text: string): Buffer => Buffer.from(`${text}\0`);
  const twice = Buffer.concat([Buffer.of(10), name("a"), Buffer.of(10), name("a"), Buffer.of(6), name("b")]);
  const inner = (type: number, of: string, content: Buffer): Buffer =>
    Buffer.concat([Buffer.of(type), name(of), int32(content.length + 5), content, Buffer.of(0)]);
  const content = inner(4, "pipeline", inner(3, "0", inner(3, "$match", twice)));
  const stored = Buffer.concat([int32(content.length + 5), content, Buffer.of(0)]);
  assert.equal(stagesText(stored), '[{"$match":{"a":null,"a":null,"b":{"$undefined":true}}}]');
});

function int32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32LE(value);
  return bytes;
}

test("an update says what it changes; a seek and a delete say where and whether", LIMIT, async () => {
  const asked: unknown[] = [];
  const unary: Unary = {
    "Subscriptions/UpdateSubscription": (bytes) => {
      const request = fromBinary(UpdateSubscriptionRequestSchema, bytes);
      asked.push(request.updateMask?.paths, request.subscription?.etag);
      return subscription({ name: "s" });
    },
    "Subscriptions/SeekSubscription": (bytes) => {
      asked.push(fromBinary(SeekSubscriptionRequestSchema, bytes).to?.at.case);
      return subscription({ name: "s" });
    },
    "Subscriptions/DeleteSubscription": (bytes) => {
      asked.push(fromBinary(DeleteSubscriptionRequestSchema, bytes).allowMissing);
      return new Uint8Array();
    },
  };
  await answering(unary, async (client) => {
    const one = client.subscription("s");
    await one.update({ feed: { database: "shop" }, onHistoryLost: "earliest", etag: "e" });
    await one.seek({ time: new Date("2026-01-02T03:04:05.678Z") });
    await one.seek({ startAfter: token(1) });
    await one.delete({ allowMissing: true });
    await assert.rejects(one.update({ etag: "e" }), TypeError);
  });
  assert.deepEqual(asked, [["feed", "on_history_lost"], "e", "time", "startAfter", true]);
});

test("all subscriptions are listed, page by page", LIMIT, async () => {
  const list = (bytes: Buffer): Uint8Array => {
    const { pageToken, pageSize } = fromBinary(ListSubscriptionsRequestSchema, bytes);
    assert.equal(pageSize, 1);
    const page = { subscriptions: [{ name: pageToken || "a" }], nextPageToken: pageToken === "" ? "b" : "" };
    return toBinary(ListSubscriptionsResponseSchema, create(ListSubscriptionsResponseSchema, page));
  };
  await answering({ "Subscriptions/ListSubscriptions": list }, async (client) => {
    const names = [];
    for await (const { name } of client.listSubscriptions({ pageSize: 1 })) {
      names.push(name);
    }
    assert.deepEqual(names, ["a", "b"]);
  });
});

test("a start is resolved, a feed explained", LIMIT, async () => {
  const unary: Unary = {
    "ChangeFeed/ResolvePosition": (bytes) => {
      const request = fromBinary(ResolvePositionRequestSchema, bytes);
      assert.equal(request.start?.at.case, "earliest");
      const answer = { position: Buffer.from("P"), clusterTime: { seconds: 7, increment: 8 }, time: { seconds: 7n } };
      return toBinary(ResolvePositionResponseSchema, create(ResolvePositionResponseSchema, answer));
    },
    "ChangeFeed/Explain": (bytes) => {
      assert.equal(fromBinary(ExplainRequestSchema, bytes).feed?.database, "shop");
      const refusal = { reason: "R" };
      const answer = {
        pipeline: "[]",
        streamOpen: true,
        oplogHeadroom: { seconds: 3n },
        refusal,
        scopeMissing: true,
        documentsEstimated: 5n,
      };
      return toBinary(ExplainResponseSchema, create(ExplainResponseSchema, answer));
    },
  };
  await answering(unary, async (client) => {
    const feed = client.feed({ database: "shop" });
    const resolved = await feed.resolve("earliest");
    assert.equal(resolved.position.toString(), "P");
    assert.equal(resolved.clusterTime?.t, 7);
    assert.equal(resolved.time?.getTime(), 7000);
    const explained = await feed.explain();
    assert.equal(explained.refusal?.reason, "R");
    assert.equal(explained.oplogHeadroomMs, 3000);
    assert.ok(explained.streamOpen);
    assert.ok(explained.scopeMissing);
    assert.equal(explained.documentsEstimated, 5);
  });
});

test("a refusal is an error of its type; a call can be bounded and cancelled", LIMIT, async () => {
  const unary: Unary = {
    "Subscriptions/GetSubscription": () => ({ status: "NOT_FOUND", reason: "SUBSCRIPTION_NOT_FOUND" }),
  };
  await answering(unary, async (client) => {
    const one = client.subscription("s");
    await assert.rejects(one.get(), feedmux.SubscriptionNotFoundError);
    await assert.rejects(one.get({ timeoutMs: 0 }), feedmux.UnavailableError);
    await assert.rejects(one.get({ signal: AbortSignal.abort(new Error("no")) }), { message: "no" });
    const stop = new AbortController();
    const running = one.get({ signal: stop.signal });
    stop.abort(new Error("stop"));
    await assert.rejects(running, { message: "stop" });
  });
});

/** Resolves with each request's peer when the server has it, and answers none of the first `deaf`. */
function hearing(deaf: number): {
  readonly peers: string[];
  readonly unary: Unary;
  heard: (count: number) => Promise<void>;
} {
  const peers: string[] = [];
  let wake: () => void = () => undefined;
  const unary: Unary = {
    "Subscriptions/GetSubscription": (_, peer) => {
      peers.push(peer);
      wake();
      return peers.length > deaf ? subscription({ name: "s" }) : undefined;
    },
  };
  const heard = async (count: number): Promise<void> => {
    while (peers.length < count) {
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    }
  };
  return { peers, unary, heard };
}

test(
  "closing the client ends the calls that run, also on a connection that takes no new ones",
  LIMIT,
  async (context) => {
    const { peers, unary, heard } = hearing(3);
    await answering(unary, async (client) => {
      context.mock.timers.enable({ apis: ["setTimeout", "Date"] });
      context.mock.method(performance, "now", () => Date.now());
      const one = client.subscription("s");
      const left = assert.rejects(one.get(), /the client was closed/);
      const late = assert.rejects(one.get({ timeoutMs: 5_000 }), { status: "DEADLINE_EXCEEDED" });
      await heard(2);
      context.mock.timers.tick(5_000);
      await late;
      const current = assert.rejects(one.get(), /the client was closed/);
      await heard(3);
      assert.notEqual(peers[0], peers[2], "the first calls are on a connection that was left");
      await client.close();
      await Promise.all([left, current]);
    });
  },
);

test("a call that waited in vain for less than 5 s keeps its connection", LIMIT, async (context) => {
  const { peers, unary, heard } = hearing(1);
  await answering(unary, async (client) => {
    context.mock.timers.enable({ apis: ["setTimeout", "Date"] });
    context.mock.method(performance, "now", () => Date.now());
    const one = client.subscription("s");
    const late = assert.rejects(one.get({ timeoutMs: 4_999 }), { status: "DEADLINE_EXCEEDED" });
    await heard(1);
    context.mock.timers.tick(4_999);
    await late;
    await one.get();
    assert.equal(peers[0], peers[1]);
  });
});

test("a call waits for a token as long as it may, and until it is cancelled", LIMIT, async () => {
  const { unary } = hearing(0);
  await using server = await ScriptedServer.start([], unary);
  const slow = async (): Promise<string> => {
    await new Promise((resolve) => setTimeout(resolve, 2));
    return "token";
  };
  await using patient = new feedmux.Client(server.address, { token: slow, timeoutMs: Infinity });
  assert.equal((await patient.subscription("s").get()).name, "s");
  const wallClock = Date.now;
  const setting = (): string => {
    Date.now = () => wallClock() + 3_600_000;
    return "token";
  };
  await using ahead = new feedmux.Client(server.address, { token: setting });
  try {
    assert.equal((await ahead.subscription("s").get()).name, "s");
  } finally {
    Date.now = wallClock;
  }
  const stop = new AbortController();
  await using stuck = new feedmux.Client(server.address, { token: () => new Promise<string>(() => undefined) });
  const waiting = assert.rejects(stuck.subscription("s").get({ signal: stop.signal }), { message: "stop" });
  stop.abort(new Error("stop"));
  await waiting;
});

test("a token function that fails, or gives no token, is an error with its cause", LIMIT, async () => {
  const { peers, unary } = hearing(0);
  await using server = await ScriptedServer.start([], unary);
  const failing: (() => unknown)[] = [
    () => {
      throw new RangeError("secret store");
    },
    () => Promise.reject(new RangeError("secret store")),
    () => undefined,
    () => Promise.resolve(5),
    () => "",
  ];
  for (const token of failing) {
    await using client = new feedmux.Client(server.address, { token: token as () => string });
    await assert.rejects(client.subscription("s").get(), (error) => {
      assert.ok(error instanceof feedmux.UnavailableError);
      assert.equal(error.status, "UNAVAILABLE");
      assert.match(error.details, /^the token function failed: ./);
      assert.ok(error.cause instanceof Error);
      return true;
    });
  }
  assert.deepEqual(peers, []);
});

test("what a program without types gets wrong is named, and not ignored", LIMIT, async () => {
  // In JavaScript, `feed("shop.orders")` would be the whole deployment, and `open("earliest")` would begin now.
  const wrong = (value: unknown): never => value as never;
  const client = new feedmux.Client("localhost:1", { apiKey: "k" });
  try {
    const orders = client.feed({ database: "shop", collection: "orders" });
    await assert.rejects(client.feed(wrong("shop.orders")).open(), /a feed: an object with database, collection/);
    await assert.rejects(client.feed(wrong({ database: "shop", coll: "orders" })).open(), /a feed: there is no "coll"/);
    await assert.rejects(client.feed({ pipeline: wrong({ $match: {} }) }).open(), /pipeline is an array of stages/);
    await assert.rejects(
      orders.open(wrong("earliest")),
      /the options of open\(\): an object with windowEvents, .*start/,
    );
    await assert.rejects(orders.open(wrong({ windowEvent: 5 })), /there is no "windowEvent"; there are windowEvents/);
    const times = [{ time: new Date("x") }, { time: "2026-01-01" }, { operationTime: 5 }, { operationTime: { T: 5 } }];
    for (const start of [
      "yesterday",
      "",
      null,
      5,
      new Date(),
      ...times,
      { time: new Date(), position: Buffer.of(1) },
    ]) {
      await assert.rejects(orders.open({ start: wrong(start) }), /a start is "earliest"/, JSON.stringify(start));
      await assert.rejects(client.subscription("s").seek(wrong(start)), /a start is "earliest"/, JSON.stringify(start));
    }
    for (const name of ["", null, undefined, 5, ["shop"]]) {
      await assert.rejects(client.feed({ database: wrong(name) }).open(), /a feed's database is a name/);
      await assert.rejects(client.feed({ database: "shop", collection: wrong(name) }).open(), /collection is a name/);
    }
    const half = { name: "TypeError", message: /half of a surrogate pair/ };
    await assert.rejects(client.feed({ database: "shop\ud83d" }).open(), half);
    await assert.rejects(client.feed({ pipeline: '[{"$match":{"a":"\ud83d"}}]' }).explain(), half);
    await assert.rejects(client.subscription("s\ud83d").open(), half);
    await assert.rejects(client.subscription("s\ud83d").get(), half);
    await assert.rejects(client.feed({ showExpandedEvents: wrong("false") }).open(), /is true or false/);
    for (const target of [undefined, "", "localhost", "localhost:", "http://localhost:7117", "::1"]) {
      assert.throws(() => new feedmux.Client(wrong(target)), /the target is host:port/, target);
    }
    for (const target of ["[::1]:7117", "dns:///localhost", "unix:/run/feedmux.sock"]) {
      await new feedmux.Client(target).close();
    }
    assert.throws(
      () => new feedmux.Client("localhost:1", wrong({ apikey: "k" })),
      /there is no "apikey"; there are apiKey/,
    );
    assert.throws(() => new feedmux.Client("localhost:1", { tls: wrong("ca.pem") }), /tls: an object with ca/);
    assert.throws(() => new feedmux.Client("localhost:1", { tls: wrong(null) }), /tls: an object with ca/);
    assert.throws(() => new feedmux.Client("localhost:1", { apiKey: wrong(null) }), /is not a string/);
    await assert.rejects(orders.open({ bson: { useBigInt64: wrong("false") } }), /useBigInt64 is true or false/);
    // A variable that was not set would be the whole deployment.
    await assert.rejects(client.feed(undefined).open(), /a feed: an object with database/);
    await assert.rejects(client.subscription("s").create(undefined), /a feed: an object with database/);
  } finally {
    await client.close();
  }
});

test("a misspelt option is named by every method that takes options, and nothing is sent", LIMIT, async () => {
  const wrong = (options: object): never => options as never;
  const sent: string[] = [];
  const refuse = (name: string) => [name, () => (sent.push(name), { status: "INTERNAL" as const })];
  const unary = Object.fromEntries(
    [
      ...["Create", "Get", "Update", "Seek", "Delete"].map((verb) => `Subscriptions/${verb}Subscription`),
      "Subscriptions/ListSubscriptions",
      "ChangeFeed/ResolvePosition",
      "ChangeFeed/Explain",
    ].map(refuse),
  ) as Unary;
  await answering(unary, async (client) => {
    const one = client.subscription("s");
    const feed = client.feed({ database: "shop" });
    const misspelt: [work: () => Promise<unknown>, unknown: string, known: string][] = [
      [
        () => one.create({ database: "shop" }, wrong({ strat: "earliest" })),
        "strat",
        "start, onInvalidate, onHistoryLost",
      ],
      [() => one.create({ database: "shop" }, wrong({ onInvalidat: "continue" })), "onInvalidat", "onInvalidate"],
      [
        () => one.create({ database: "shop" }, wrong({ start: "snapshot", timeout: 5 })),
        "timeout",
        "signal, timeoutMs",
      ],
      [() => one.get(wrong({ timeout: 5 })), "timeout", "signal, timeoutMs"],
      [
        () => one.update(wrong({ onInvalidate: "continue", onHistoryLosst: "fail" })),
        "onHistoryLosst",
        "onHistoryLost",
      ],
      [() => one.update(wrong({ onInvalidate: "continue", etg: "e" })), "etg", "etag"],
      [() => one.update({ onInvalidate: "continue" }, wrong({ etag: "e" })), "etag", "signal, timeoutMs"],
      [() => one.seek("latest", wrong({ timeout: 5 })), "timeout", "signal, timeoutMs"],
      [() => one.seek("snapshot", wrong({ timeout: 5 })), "timeout", "signal, timeoutMs"],
      [() => one.delete(wrong({ etg: "e" })), "etg", "etag, allowMissing"],
      [() => one.open(wrong({ takeOver: true })), "takeOver", "takeover"],
      [() => one.open(wrong({ start: "earliest" })), "start", "onNotice, signal, takeover"],
      [() => feed.open(wrong({ strat: "earliest" })), "strat", "start"],
      [() => feed.open(wrong({ takeover: true })), "takeover", "start"],
      [() => feed.explain(wrong({ strat: "earliest" })), "strat", "start"],
      [() => feed.resolve("latest", wrong({ timeout: 5 })), "timeout", "signal, timeoutMs"],
      [() => client.listSubscriptions(wrong({ pagesize: 5 })).next(), "pagesize", "pageSize"],
    ];
    for (const [work, unknown, known] of misspelt) {
      await assert.rejects(work, (error) => {
        assert.ok(error instanceof TypeError, `${unknown}: ${String(error)}`);
        assert.match(error.message, new RegExp(`there is no "${unknown}"; there are .*${known}`));
        return true;
      });
    }
    for (const work of [
      () => one.create({}, wrong(["earliest"])),
      () => one.delete("e" as never),
      () => one.get(null as never),
    ]) {
      await assert.rejects(work, TypeError);
    }
  });
  assert.deepEqual(sent, []);
});

test("a value of another type is a TypeError with its name, and nothing is sent", LIMIT, async () => {
  const wrong = (value: unknown): never => value as never;
  const sent: string[] = [];
  const note = (name: string) => () => (sent.push(name), { status: "INTERNAL" as const });
  const unary: Unary = {
    "Subscriptions/CreateSubscription": note("create"),
    "Subscriptions/UpdateSubscription": note("update"),
    "Subscriptions/DeleteSubscription": note("delete"),
    "Subscriptions/ListSubscriptions": note("list"),
    "Subscriptions/GetSubscription": note("get"),
  };
  await answering(unary, async (client) => {
    const one = client.subscription("s");
    for (const name of ["batchSize", "maxAwaitTimeMs"]) {
      for (const value of [1.5, "7", 7n, null, true]) {
        const told = { name: "TypeError", message: new RegExp(`^a feed's ${name} is a(n integer| number), not `) };
        await assert.rejects(client.feed({ [name]: value }).open(), told);
        await assert.rejects(one.create({ [name]: value }), told);
      }
      await assert.rejects(client.feed({ [name]: -1 }).open(), RangeError);
      await assert.rejects(client.feed({ [name]: 2 ** 31 }).open(), RangeError);
    }
    for (const name of ["source", "fullDocument", "fullDocumentBeforeChange", "readPreference", "readConcern"]) {
      const told = { name: "TypeError", message: new RegExp(`^a feed's ${name} is a text, not number`) };
      await assert.rejects(client.feed({ [name]: 5 }).open(), told);
    }
    await assert.rejects(client.feed({ extraOptions: wrong("abc") }).open(), /extraOptions is an array of names/);
    await assert.rejects(client.feed({ extraOptions: wrong([5]) }).open(), /extraOptions is an array of names/);
    await assert.rejects(one.delete({ etag: wrong(null) }), { name: "TypeError", message: "etag is a text, not null" });
    await assert.rejects(one.delete({ allowMissing: wrong("no") }), /^TypeError: allowMissing is true or false/);
    await assert.rejects(one.update({ onInvalidate: "stop", etag: wrong(5) }), /^TypeError: etag is a text/);
    await assert.rejects(one.update({ onInvalidate: "stop", feed: wrong(null) }), /^TypeError: a feed: .* not null/);
    await assert.rejects(one.update({ onInvalidate: wrong(null) }), /onInvalidate is one of stop, continue/);
    await assert.rejects(one.create({}, { onHistoryLost: wrong("") }), /onHistoryLost is one of fail/);
    await assert.rejects(one.open({ takeover: wrong("no") }), /^TypeError: takeover is true or false/);
    await assert.rejects(one.open({ onNotice: wrong("log") }), /^TypeError: onNotice is a function/);
    await assert.rejects(one.open({ format: wrong("json") }), /^RangeError: format is one of bson, /);
    await assert.rejects(one.get({ timeoutMs: wrong("5") }), /^TypeError: timeoutMs is a number, not string/);
    await assert.rejects(client.listSubscriptions({ pageSize: 1.5 }).next(), /^TypeError: pageSize is an integer/);
    assert.throws(() => client.subscription(wrong(5)), /^TypeError: a subscription's name is a text, not number/);
    assert.throws(() => new feedmux.Client("localhost:1", { source: wrong(5) }), /^TypeError: source is a text/);
    assert.throws(
      () => new feedmux.Client("localhost:1", { timeoutMs: wrong("5") }),
      /^TypeError: timeoutMs is a number/,
    );
  });
  assert.deepEqual(sent, []);
});
