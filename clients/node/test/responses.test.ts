/** Reading the wire: no copy, exact numbers, fragments, every kind of notice. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { create, toBinary } from "@bufbuild/protobuf";
import { deserialize, type DeserializeOptions, Long, serialize } from "bson";

import { type Batch, BsonBatch, JsonBatch } from "../src/batches.js";
import { ProtocolError } from "../src/errors.js";
import { SubscribeResponseSchema } from "../src/gen/feedmux/v1/change_feed_pb.js";
import { SnapshotStatus_State } from "../src/gen/feedmux/v1/feed_pb.js";
import { FeedPosition } from "../src/positions.js";
import { Reader } from "../src/responses.js";
import { batch, event, fragments, feedPosition, type Response, token } from "./scripted-server.js";

function bytes(message: Response): Buffer {
  return Buffer.from(toBinary(SubscribeResponseSchema, create(SubscribeResponseSchema, { message })));
}

function delivered(message: Buffer, json = false, options: DeserializeOptions = {}): Batch {
  const response = new Reader(json, options).read(message);
  assert.ok(response?.kind === "delivery");
  return response.batch;
}

test("a batch is a view on the message it came in", () => {
  const message = bytes(batch(7, [1, 2, 3], 5000));
  const got = delivered(message);
  assert.ok(got instanceof BsonBatch);
  assert.equal(got.raw.buffer, message.buffer);
  assert.deepEqual(
    [...got].map(({ raw }) => raw.buffer === message.buffer),
    [true, true, true],
  );
  assert.deepEqual(
    got.documents().map(({ n }) => n as number),
    [1, 2, 3],
  );
  assert.deepEqual(
    [...got].map(({ resumeToken }) => resumeToken),
    [token(1), token(2), token(3)],
  );
  assert.equal(got.position.toString(), "P3");
  assert.notEqual(got.position.buffer, message.buffer, "a position may be kept, and would keep the message");
});

test("fragments are joined, and forgotten with their stream", () => {
  const reader = new Reader(false, {});
  const parts = fragments(4, 9, 10_000, 3).map(bytes);
  assert.deepEqual(
    parts.slice(0, 2).map((part) => reader.read(part)),
    [undefined, undefined],
  );
  reader.reset();
  const responses = parts.map((part) => reader.read(part));
  const last = responses.at(-1);
  assert.ok(last?.kind === "delivery");
  assert.equal(last.firstSequence, 4n);
  assert.deepEqual(last.batch.rawEvent(0), Buffer.from(event(9, 10_000)));
  assert.equal(last.batch.position.toString(), "P9");
});

test("the id need not be first, and need not be there", () => {
  for (const [document, found] of [
    [{ n: 1, _id: token(3) }, token(3)],
    [{ n: 1, _id: 3 }, undefined],
    [{ n: 1 }, undefined],
  ]) {
    const raw = Buffer.from(serialize(document ?? {}));
    const message: Response = {
      case: "batch",
      value: { firstDeliverySequence: 1n, eventCount: 1, bson: raw, ...feedPosition(3) },
    };
    assert.deepEqual([...delivered(bytes(message))][0]?.resumeToken, found);
  }
});

const BIG = 2n ** 63n - 1n;

test("int64 is exact in every format, and a bigint on request", () => {
  const document = { _id: token(1), small: Long.fromNumber(5), big: BIG, s: 'has "12345678901234567890" digits' };
  const texts = [
    `{"_id": {"_data": "82"}, "small": 5, "big": ${String(BIG)}, "d": 1234567890123456789.5, "s": "\\"1234567890123456789"}`,
    `{"_id": {"_data": "82"}, "small": {"$numberLong": "5"}, "big": {"$numberLong": "${String(BIG)}"}}`,
  ];
  const messages: [boolean, Response][] = [
    [false, { case: "batch", value: { firstDeliverySequence: 1n, eventCount: 1, bson: serialize(document) } }],
    ...texts.map((text): [boolean, Response] => [
      true,
      { case: "batch", value: { firstDeliverySequence: 1n, eventCount: 1, json: [text] } },
    ]),
  ];
  for (const [json, message] of messages) {
    const plain = delivered(bytes(message), json).decode(0);
    assert.equal(plain["small"], 5);
    assert.ok(plain["big"] instanceof Long);
    assert.equal(plain["big"].toBigInt(), BIG);
    assert.equal(delivered(bytes(message), json, { useBigInt64: true }).decode(0)["big"], BIG);
  }
});

test("extended JSON comes as text and decoded", () => {
  const texts = ['{"_id": {"_data": "82"}, "n": 1}', '{"_id": {"_data": "83"}, "s": "ü"}'];
  const message: Response = {
    case: "batch",
    value: { firstDeliverySequence: 1n, eventCount: 2, json: texts, ...feedPosition(2) },
  };
  const got = delivered(bytes(message), true);
  assert.ok(got instanceof JsonBatch);
  assert.deepEqual(got.documents(), [
    { _id: { _data: "82" }, n: 1 },
    { _id: { _data: "83" }, s: "ü" },
  ]);
  assert.equal(
    got.sizeBytes,
    texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0),
  );
  assert.deepEqual(
    [...got].map(({ resumeToken }) => resumeToken),
    [{ _data: "82" }, { _data: "83" }],
  );
  assert.equal(got.part(1, 2).rawEvent(0).toString(), texts[1]);
  const broken: Response = { case: "batch", value: { firstDeliverySequence: 1n, eventCount: 1, json: ["{"] } };
  assert.throws(() => delivered(bytes(broken), true).decode(0), ProtocolError);
});

test("notices of every kind, and of none", () => {
  const time = { seconds: 5, increment: 6 };
  const said = (kind: NonNullable<(Response & { case: "notice" })["value"]["kind"]>): unknown => {
    const response = new Reader(false, {}).read(bytes({ case: "notice", value: { kind } }));
    return response?.kind === "said" ? JSON.parse(JSON.stringify(response.notice)) : response;
  };
  const stamp = { $timestamp: "21474836486" };
  assert.deepEqual(said({ case: "rewound", value: { from: time, to: time } }), {
    kind: "rewound",
    beginsAt: stamp,
    hadReached: stamp,
  });
  const [from, to] = [Buffer.from("P1"), Buffer.from("P2")];
  assert.deepEqual(
    said({
      case: "skipped",
      value: { from: time, to: { seconds: 7, increment: 8 }, fromPosition: from, toPosition: to },
    }),
    {
      kind: "skipped",
      hadReached: stamp,
      beginsAt: { $timestamp: "30064771080" },
      hadReachedPosition: from.toJSON(),
      beginsAtPosition: to.toJSON(),
    },
  );
  assert.deepEqual(said({ case: "gap", value: { from: time, reason: "r" } }), {
    kind: "gap",
    after: stamp,
    before: { $timestamp: "0" },
    reason: "r",
  });
  assert.deepEqual(said({ case: "degraded", value: { dependency: "state", unavailable: true } }), {
    kind: "degraded",
    dependency: "state",
    unavailable: true,
  });
  assert.deepEqual(said({ case: "historyAtRisk", value: { remaining: { seconds: 2n, nanos: 500_000_000 } } }), {
    kind: "historyAtRisk",
    remainingMs: 2500,
  });
  const copied = { documents: 3n, bytes: 300n, documentsEstimated: 10n, readTime: time, generation: 7n };
  const running = {
    ...copied,
    state: SnapshotStatus_State.RUNNING,
    remaining: { seconds: 2n },
    namespace: "shop.orders",
  };
  assert.deepEqual(said({ case: "snapshot", value: running }), {
    kind: "snapshotProgress",
    documents: 3,
    bytes: 300,
    documentsEstimated: 10,
    remainingMs: 2000,
    readTime: stamp,
    namespace: "shop.orders",
    generation: 7,
  });
  assert.deepEqual(said({ case: "snapshot", value: { ...copied, state: SnapshotStatus_State.DONE } }), {
    kind: "snapshotComplete",
    documents: 3,
    bytes: 300,
    readTime: stamp,
    generation: 7,
  });
  assert.equal(said({ case: undefined }), undefined);
});

test("dates in extended JSON are those of the same BSON, also where JavaScript cannot hold them", () => {
  for (const milliseconds of ["253402300800000", "-62135596800001", "8640000000000001", "9223372036854775807"]) {
    const text = `{"a":[{"at":{"$date":{"$numberLong":"${milliseconds}"}}}],"n":1}`;
    const [document] = new JsonBatch([text], new FeedPosition(), undefined, {}).documents();
    const bson = Buffer.from("11000000" + "09617400" + "0000000000000000" + "00", "hex");
    bson.writeBigInt64LE(BigInt(milliseconds), 8);
    const wanted = deserialize(bson)["at"] as Date;
    const { at } = (document?.["a"] as { at: Date }[])[0] ?? {};
    assert.equal(Number(at), Number(wanted), milliseconds);
  }
});

test("relaxed extended JSON has whole numbers exactly, and fractions as they are", () => {
  const text =
    '{"long":9223372036854775807,"least":-9223372036854775808,"n":[0.30000000000000004,1234567890123456.0,-1.2345678901234567e-5,1e+18,-0.0],"s":"\\"9223372036854775807"}';
  const batch = new JsonBatch([text], new FeedPosition(), undefined, { promoteLongs: false });
  const { n, s, long, least } = batch.documents()[0] as Record<string, unknown>;
  assert.deepEqual(n, [0.30000000000000004, 1234567890123456, -1.2345678901234567e-5, 1e18, -0]);
  assert.equal(s, '"9223372036854775807');
  assert.deepEqual([long, least].map(String), ["9223372036854775807", "-9223372036854775808"]);
});
