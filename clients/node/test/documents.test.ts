/** BSON of what users give: nothing of it is left out. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { runInNewContext } from "node:vm";

import {
  Binary,
  BSONRegExp,
  BSONSymbol,
  Code,
  DBRef,
  Decimal128,
  deserialize,
  Double,
  Int32,
  Long,
  MaxKey,
  MinKey,
  ObjectId,
  serialize,
  Timestamp,
} from "bson";

import { encode } from "../src/documents.js";
import type { Feed } from "../src/feeds.js";
import { feedMessage, startMessage } from "../src/requests.js";

class Owner {
  readonly name = "x";
  readonly #secret: number;
  constructor(secret: number) {
    this.#secret = secret;
  }
  equals(other: Owner): boolean {
    return this.#secret === other.#secret;
  }
}

class Private {
  readonly #owner = "x";
  get owner(): string {
    return this.#owner;
  }
}

const within: Record<string, unknown> = {};
within["self"] = within;

/** What `serialize` leaves out or writes as something else. */
const WRONG: readonly unknown[] = [
  undefined,
  () => 1,
  async () => Promise.resolve(1),
  Symbol("x"),
  2n ** 63n,
  -(2n ** 63n) - 1n,
  new Date(Number.NaN),
  "x\ud83d",
  new Map([["\ude00", 1]]),
  new RegExp("x\ud83d"),
  new BSONRegExp("\ud83d"),
  new Code("\ud83d", {}),
  /x/g,
  /a.b/s,
  /x/y,
  new Set([1]),
  new WeakMap(),
  Promise.resolve(1),
  new Error("x"),
  new Private(),
  Object(5),
  Object("x"),
  new ArrayBuffer(3),
  new Float32Array(3),
  new URL("http://localhost/"),
  { [Symbol("or")]: [1] },
  Object.create({ owner: 1 }),
  Object.assign(Object.create({ owner: 1 }) as object, { n: 1 }),
  { toBSON: () => undefined },
  { toBSON: () => () => 1 },
  new DBRef("c", undefined as never),
  new DBRef("c", new ObjectId(), "d", { n: undefined }),
  new Code("f()", { n: undefined }),
  [1, , 3],
  within,
  runInNewContext("new Set([1])"),
];

const SURROUNDINGS: readonly ((value: unknown) => unknown)[] = [
  (value) => value,
  (value) => ({ $in: [value] }),
  (value) => [{ $and: [{ n: 1 }, value] }],
  (value) => new Map([["$eq", value]]),
  (value) => ({ toBSON: () => ({ deep: value }) }),
];

test("a value that would be left out or changed is an error with its path, at any depth", () => {
  for (const value of WRONG) {
    for (const around of SURROUNDINGS) {
      const stage = { $match: { "fullDocument.owner": around(value) } };
      assert.throws(
        () => feedMessage({ pipeline: [stage] }, "main"),
        { name: "TypeError", message: /^a feed\.pipeline\[0\]\.\$match\.fullDocument\.owner/ },
        `${typeof value} in ${String(around)}`,
      );
    }
  }
});

test("so it is in everything that the client encodes", () => {
  for (const value of [undefined, () => 1, Symbol("x")]) {
    const feeds: unknown[] = [
      { pipeline: [value] },
      { pipeline: [{ $match: value }] },
      { collation: { locale: value } },
      { comment: { why: value } },
      { comment: [value] },
    ];
    for (const feed of feeds) {
      assert.throws(() => feedMessage(feed as Feed, "main"), TypeError);
    }
    for (const name of ["resumeAfter", "startAfter"]) {
      assert.throws(() => startMessage({ [name]: value } as never), TypeError);
      assert.throws(() => startMessage({ [name]: { _data: value } } as never), TypeError);
    }
    assert.throws(() => startMessage({ position: value } as never), /a start is/);
  }
  const none = feedMessage({ pipeline: undefined, collation: undefined, comment: undefined }, "main");
  assert.deepEqual([none.pipeline, none.collation.length, none.comment.length], [undefined, 0, 0], "options left out");
});

test("everything else is what the MongoDB driver sends", () => {
  const value = {
    null: null,
    text: "x\ud83d\ude00\ufffd",
    whole: 1,
    fraction: -0.5,
    nan: NaN,
    bigint: 2n ** 62n,
    least: -(2n ** 63n),
    flag: false,
    date: new Date(0),
    regexp: /^a/imu,
    bytes: Buffer.from("abc"),
    list: [[], {}, [null]],
    map: new Map<string, unknown>([
      ["b", 1],
      ["a", new Map()],
      ["__proto__", 2],
    ]),
    instance: new Owner(5),
    bare: Object.assign(Object.create(null) as object, { n: 1 }),
    foreign: runInNewContext("({ n: [1], map: new Map([['a', 1]]), date: new Date(5), regexp: /x/i })") as unknown,
    own: { toBSON: () => ({ n: 1 }) },
    types: [
      new ObjectId(),
      new Int32(1),
      new Long(5),
      new Double(1),
      Decimal128.fromString("1.10"),
      new Timestamp({ t: 1, i: 2 }),
      new Binary(Buffer.from("x"), 128),
      new BSONRegExp("x", "s"),
      new BSONSymbol("s"),
      new MinKey(),
      new MaxKey(),
      new Code("f()"),
      new Code("f()", { n: 1 }),
      new DBRef("c", new ObjectId(), "d", { n: 1 }),
      new DBRef("c", new ObjectId()),
    ],
  };
  const wanted = Buffer.from(serialize(value, { ignoreUndefined: false }));
  assert.equal(Buffer.from(encode(value, "a")).toString("hex"), wanted.toString("hex"));
  const own = JSON.parse('{"__proto__": {"x": 1}, "n": 1}') as object;
  assert.deepEqual(Object.keys(deserialize(encode(own, "a"))), ["__proto__", "n"], "a name is a name");
});

test("a getter is read once", () => {
  let reads = 0;
  const stage = {
    get $match(): unknown {
      return reads++ === 0 ? { n: 1 } : undefined;
    },
  };
  assert.deepEqual(deserialize(encode(stage, "a")), { $match: { n: 1 } });
});
