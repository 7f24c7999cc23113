/** Resume tokens: out of BSON and out of extended JSON they are the same bytes. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { BSONRegExp, serialize } from "bson";

import { JsonBatch } from "../src/batches.js";
import { ProtocolError } from "../src/errors.js";
import { eventId, jsonEventId, FeedPosition, tokenTime } from "../src/positions.js";
import { notUtf8, token } from "./scripted-server.js";

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

test("the token of an event is found without decoding the event", () => {
  const id = Buffer.from(serialize(token(1)));
  const values = { text: "é", inner: { text: "é" }, é: 1, filter: new BSONRegExp("(?x)é") };
  for (const event of [
    { ...values, _id: token(1) },
    { _id: token(1), ...values },
  ]) {
    assert.deepEqual(eventId(notUtf8(serialize(event))), id);
    assert.deepEqual(eventId(Buffer.from(serialize(event))), id);
  }
  for (const none of [
    { text: "é" },
    { text: "é", _id: "é" },
    { text: "é", _ids: token(1), inner: { _id: token(1) } },
  ]) {
    assert.equal(eventId(notUtf8(serialize(none))).length, 0);
  }
});

test("what is not BSON has no token, and says so", () => {
  for (const event of [{ _id: token(1) }, { n: 1, _id: token(1) }]) {
    const broken = Buffer.from(serialize(event));
    broken.writeInt32LE(-1, broken.indexOf("_id\0") + 4);
    assert.throws(() => eventId(broken), ProtocolError);
    broken.writeInt32LE(1000, broken.indexOf("_id\0") + 4);
    assert.throws(() => eventId(broken), ProtocolError);
  }
});

test("the time of a copied document's token is known, whatever the document's _id is", () => {
  const time = tokenTime(notUtf8(serialize({ ...token(5), snapshot: { _id: "é" } })));
  assert.deepEqual([time?.t, time?.i], [1005, 1]);
});

test("what is no token gives none", () => {
  const typeBits = [`{"base64":"g","subType":"00"}`, `{"base64":"gYA=","subType":"xx"}`, `"gYA="`];
  const more = typeBits.map((each) => `{"_id":{"_data":"826B","_typeBits":{"$binary":${each}}}}`);
  for (const text of [...(testdata("no_tokens.json") as string[]), ...more]) {
    assert.equal(jsonEventId(text).length, 0, text);
  }
});
