/** The unary calls: what goes up, what comes back, deadlines and cancelling. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { create, fromBinary, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { Timestamp } from "bson";

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

async function answering(unary: Unary, work: (client: feedmux.Client) => Promise<void>): Promise<void> {
  await using server = await ScriptedServer.start([], unary);
  await using client = new feedmux.Client(server.address, { source: "west" });
  await work(client);
}

function subscription(init: MessageInitShape<typeof SubscriptionSchema>): Uint8Array {
  return toBinary(SubscriptionSchema, create(SubscriptionSchema, init));
}

test("a subscription is created from a feed and read back", { timeout: 60_000 }, async () => {
  const create_ = (bytes: Buffer): Uint8Array => {
    const { subscription: asked, start } = fromBinary(CreateSubscriptionRequestSchema, bytes);
    assert.equal(start?.at.case, "startAtOperationTime");
    assert.equal(asked?.onInvalidate, 2);
    return subscription({ ...asked, epoch: 2n ** 62n + 1n, position: Buffer.from("P"), etag: "e" });
  };
  await answering({ "Subscriptions/CreateSubscription": create_ }, async (client) => {
    const feed = {
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

test("an update says what it changes; a seek and a delete say where and whether", { timeout: 60_000 }, async () => {
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

test("all subscriptions are listed, page by page", { timeout: 60_000 }, async () => {
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

test("a start is resolved, a feed explained", { timeout: 60_000 }, async () => {
  const unary: Unary = {
    "ChangeFeed/ResolvePosition": (bytes) => {
      const request = fromBinary(ResolvePositionRequestSchema, bytes);
      assert.equal(request.start?.at.case, "earliest");
      const answer = { position: Buffer.from("P"), clusterTime: { seconds: 7, increment: 8 }, time: { seconds: 7n } };
      return toBinary(ResolvePositionResponseSchema, create(ResolvePositionResponseSchema, answer));
    },
    "ChangeFeed/Explain": (bytes) => {
      assert.equal(fromBinary(ExplainRequestSchema, bytes).feed?.database, "shop");
      const answer = { pipeline: "[]", streamOpen: true, oplogHeadroom: { seconds: 3n }, refusal: { reason: "R" } };
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
  });
});

test("a refusal is an error of its type; a call can be bounded and cancelled", { timeout: 60_000 }, async () => {
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
