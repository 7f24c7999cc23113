/** Resume tokens: out of BSON and out of extended JSON they are the same bytes. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { serialize } from "bson";

import { JsonBatch } from "../src/batches.js";
import { eventId, jsonEventId, FeedPosition } from "../src/positions.js";

interface Sample {
  readonly id: string;
  readonly event: string;
  readonly token: string;
  readonly canonical: string;
  readonly relaxed: string;
}

function testdata(name: string): unknown {
  return JSON.parse(readFileSync(new URL(`../../../testdata/${name}`, import.meta.url), "utf8"));
}

test("a token is the same bytes in every format", () => {
  const samples = testdata("resume_tokens.json") as Sample[];
  for (const { id, event, token, canonical, relaxed } of samples) {
    assert.equal(eventId(Buffer.from(event, "base64")).toString("base64"), token, id);
    for (const text of [canonical, relaxed]) {
      assert.equal(jsonEventId(text).toString("base64"), token, id);
      const anywhere = `{"nested":{"_id":{"_data":"00"}},${text.slice(1)}`;
      assert.equal(jsonEventId(anywhere).toString("base64"), token, id);
      const [first] = new JsonBatch([text], new FeedPosition(), undefined, {});
      const kept = first?.resumeToken;
      assert.ok(kept !== undefined);
      assert.equal(Buffer.from(serialize(kept)).toString("base64"), token, "a user may keep it as a document");
    }
  }
  assert.ok(samples.filter(({ canonical }) => canonical.includes("_typeBits")).length > 10);
});

test("what is no token gives none", () => {
  const typeBits = [`{"base64":"g","subType":"00"}`, `{"base64":"gYA=","subType":"xx"}`, `"gYA="`];
  const more = typeBits.map((each) => `{"_id":{"_data":"826B","_typeBits":{"$binary":${each}}}}`);
  for (const text of [...(testdata("no_tokens.json") as string[]), ...more]) {
    assert.equal(jsonEventId(text).length, 0, text);
  }
});
