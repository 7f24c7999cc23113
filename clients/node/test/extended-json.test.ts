/** Extended JSON is read as the BSON that it was written from. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { inspect } from "node:util";

import { deserialize } from "bson";

import { JsonBatch } from "../src/batches.js";
import { ProtocolError } from "../src/errors.js";
import { toBson } from "../src/extended-json.js";
import { FeedPosition } from "../src/positions.js";

interface Sample {
  readonly name: string;
  readonly bson: string;
  readonly canonical: string;
}

const SAMPLES = JSON.parse(
  readFileSync(new URL("../../../testdata/extended_json.json", import.meta.url), "utf8"),
) as Sample[];

/** As text, since invalid dates do not equal each other. bson throws where a pattern is none of JavaScript's. */
function outcome(decode: () => unknown): string {
  try {
    return inspect(decode(), { depth: null, maxStringLength: null });
  } catch (error) {
    return String(error);
  }
}

function decoded(text: string): unknown {
  return new JsonBatch([text], new FeedPosition(), undefined, {}).decode(0);
}

test("canonical text is the bytes of its document, whatever names it has", () => {
  for (const { name, bson, canonical } of SAMPLES) {
    assert.equal(toBson(canonical).toString("base64"), bson, name);
    const wanted = outcome(() => deserialize(Buffer.from(bson, "base64"), {}));
    assert.equal(
      outcome(() => decoded(canonical)),
      wanted,
      name,
    );
  }
  assert.ok(SAMPLES.length > 100);
});

test("a relaxed number is no part of a value", () => {
  for (const [text, wanted] of [
    ['{"q":{"$date":9223372036854775807}}', { q: { $date: 9223372036854775807n } }],
    ['{"q":{"$numberDouble":1.0}}', { q: { $numberDouble: 1 } }],
    ['{"q":{"$date":"2024-01-02T03:04:05.678Z"}}', { q: new Date("2024-01-02T03:04:05.678Z") }],
    ['{"q":{"$date":"2024-02-30T03:04:05Z"}}', { q: { $date: "2024-02-30T03:04:05Z" } }],
  ] as const) {
    assert.deepEqual(deserialize(toBson(text), { useBigInt64: true }), wanted, text);
  }
});

test("any other text is an error that names the way out", () => {
  for (const text of [
    "",
    "{",
    "[]",
    "5",
    "null",
    '{"a": 1} x',
    '{"a\\u0000b": 1}',
    '{"a":'.repeat(5000) + "1" + "}".repeat(5000),
  ]) {
    assert.throws(
      () => decoded(text),
      (error) => error instanceof ProtocolError && error.message.includes("use format bson"),
      text.slice(0, 20),
    );
  }
});
