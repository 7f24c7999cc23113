/** Ordinals, acks and repeats, without a network. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { serialize, Timestamp } from "bson";

import { type Batch, BsonBatch, JsonBatch } from "../src/batches.js";
import { ProtocolError } from "../src/errors.js";
import { DeliveryTracker } from "../src/delivery-tracker.js";
import { FeedPosition, tokenTime } from "../src/positions.js";
import { event, feedPosition, notUtf8, token } from "./scripted-server.js";

function at(number: number): FeedPosition {
  const { position, resumeToken, clusterTime } = feedPosition(number);
  const time = new Timestamp({ t: clusterTime.seconds, i: clusterTime.increment });
  return new FeedPosition(Buffer.from(position), Buffer.from(resumeToken), time);
}

function events(...numbers: number[]): Batch {
  const raw = Buffer.concat(numbers.map((number) => event(number)));
  return new BsonBatch(raw, numbers.length, at(numbers.at(-1) ?? 0), undefined, {});
}

function numbers(batches: Batch[]): unknown[] {
  return batches.flatMap((batch) => batch.documents().map((document) => document["n"] as unknown));
}

function begun(durable = true, wholeBytesMax = 2 ** 40): DeliveryTracker {
  const tracker = new DeliveryTracker(durable, wholeBytesMax);
  tracker.begin(at(0), 0);
  return tracker;
}

/** Half of the random tests keep tokens only. */
function keptWhole(seed: number): number {
  return seed % 2 === 0 ? 0 : 2 ** 40;
}

test("numbers events from one", () => {
  const tracker = begun();
  const [first] = tracker.arrive(1n, events(1, 2, 3));
  const [second] = tracker.arrive(4n, events(4));
  assert.deepEqual([first?.firstSequence, first?.lastSequence, second?.firstSequence], [1, 3, 4]);
  assert.deepEqual(tracker.latest, at(4));
  assert.throws(() => tracker.arrive(6n, events(6)), ProtocolError);
  assert.throws(() => tracker.arrive(2n ** 53n + 5n, events(6)), ProtocolError);
});

test("acks, and where to begin again", () => {
  const tracker = begun();
  assert.deepEqual(tracker.ackedPosition(0), at(0));
  tracker.arrive(1n, events(1, 2, 3));
  tracker.arrive(4n, events(4, 5));
  assert.equal(tracker.ackedSequence(2), 2);
  const middle = tracker.ackedPosition(2);
  assert.equal(middle.position.length, 0);
  assert.deepEqual(middle.resumeToken, token(2));
  assert.deepEqual(tracker.ackedPosition(3), at(3));
  assert.equal(tracker.ackedSequence(5), 5);
  tracker.progress(at(9));
  assert.deepEqual(tracker.ackedPosition(5), at(9));
});

test("repeats are dropped and their acks mapped", () => {
  const tracker = begun();
  tracker.arrive(1n, events(1, 2, 3));
  tracker.arrive(4n, events(4, 5));
  tracker.begin(at(2), 2);
  assert.equal(tracker.ackedSequence(4), 0);
  assert.deepEqual(tracker.arrive(1n, events(3, 4)), []);
  assert.equal(tracker.ackedSequence(4), 2);
  const fresh = tracker.arrive(3n, events(5, 6, 7));
  assert.deepEqual(numbers(fresh), [6, 7]);
  assert.equal(fresh[0]?.firstSequence, 6);
  assert.deepEqual(fresh[0].feedPosition, at(7));
  assert.ok(!tracker.expectsRepeats());
  assert.equal(tracker.ackedSequence(6), 4);
  assert.deepEqual(tracker.ackedPosition(6).resumeToken, token(6));
});

test("what was acked while reconnecting is dropped too", () => {
  const tracker = begun();
  tracker.arrive(1n, events(1, 2, 3));
  tracker.ackedPosition(1);
  tracker.begin(at(1), 1);
  assert.deepEqual(numbers(tracker.arrive(1n, events(2, 3, 4))), [4]);
  assert.equal(tracker.ackedSequence(3), 2);
});

test("a second reconnect before the repeats came", () => {
  const tracker = begun();
  tracker.arrive(1n, events(1, 2, 3));
  tracker.begin(at(0), 0);
  tracker.arrive(1n, events(1));
  tracker.begin(at(0), 0);
  assert.deepEqual(numbers(tracker.arrive(1n, events(1, 2, 3, 4))), [4]);
  assert.equal(tracker.ackedSequence(4), 4);
});

test("a later event ends the dropping", () => {
  const tracker = begun();
  tracker.arrive(1n, events(1, 2));
  tracker.begin(at(0), 0);
  assert.deepEqual(numbers(tracker.arrive(1n, events(7))), [7]);
  assert.ok(!tracker.expectsRepeats());
  assert.equal(tracker.ackedSequence(3), 1);
});

test("after a rewind older events come first and hold back the ack", () => {
  const tracker = begun();
  tracker.arrive(1n, events(5, 6));
  tracker.begin(at(2), 0);
  assert.equal(tracker.arrive(1n, events(3, 4))[0]?.firstSequence, 3);
  assert.deepEqual(tracker.arrive(3n, events(5, 6)), []);
  assert.equal(tracker.ackedSequence(2), 0);
  assert.equal(tracker.ackedSequence(4), 4);
});

test("forgetting lets everything come again", () => {
  const tracker = begun();
  tracker.arrive(1n, events(1, 2, 3));
  tracker.forget();
  assert.deepEqual(tracker.ackedPosition(2), new FeedPosition());
  tracker.begin(at(0), 2);
  assert.deepEqual(numbers(tracker.arrive(1n, events(1, 2))), [1, 2]);
  assert.equal(tracker.ackedSequence(3), 0);
  assert.equal(tracker.ackedSequence(4), 1);
});

test("an inline feed keeps nothing", () => {
  const tracker = begun(false);
  tracker.arrive(1n, events(1, 2));
  tracker.begin(tracker.latest, 0);
  assert.ok(!tracker.expectsRepeats());
  assert.deepEqual(numbers(tracker.arrive(1n, events(3))), [3]);
});

test("progress among repeats does not move the position", () => {
  const tracker = begun();
  tracker.arrive(1n, events(1, 2, 3));
  tracker.begin(at(0), 0);
  tracker.arrive(1n, events(1));
  tracker.progress(at(1));
  assert.deepEqual(tracker.latest, at(3));
});

test("the time of a token is undefined for what is not understood", () => {
  const time = tokenTime(Buffer.from(feedPosition(5).resumeToken));
  assert.deepEqual([time?.t, time?.i], [1005, 1]);
  assert.equal(tokenTime(Buffer.from("rubbish")), undefined);
  assert.equal(tokenTime(Buffer.from([5, 0, 0, 0, 0])), undefined);
});

/** A small generator with a seed (mulberry32), so that a failure can be played again. */
function randomNumbers(seed: number): (least: number, most: number) => number {
  let state = seed;
  return (least, most) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return least + Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * (most - least + 1));
  };
}

function numberOf(where: FeedPosition): number {
  return where.position.length > 0 ? Number(where.position.toString().slice(1)) : (where.clusterTime?.t ?? 0) - 1000;
}

test("an event among repeats that was not there before is begun before until it is acked", () => {
  // The filter was widened. Its ordinal is higher than those of the events after it.
  const tracker = begun();
  tracker.arrive(1n, events(1, 2));
  tracker.arrive(3n, events(4, 5));
  tracker.begin(at(2), 2);
  assert.deepEqual(numbers(tracker.arrive(1n, events(3, 4, 5))), [3]);
  assert.equal(tracker.ackedSequence(4), 0);
  assert.deepEqual(tracker.ackedPosition(4), at(2), "3 is not acked");
  tracker.begin(at(2), 4);
  assert.deepEqual(tracker.arrive(1n, events(3, 4, 5)), [], "4 and 5 were acked, and are not handed out again");
  assert.equal(tracker.ackedSequence(5), 3);
  assert.deepEqual(tracker.ackedPosition(5), at(5));
});

test("random reconnects under a growing filter lose nothing", () => {
  // Whatever was received and is not acked comes again when the next process begins where this one would.
  for (let seed = 0; seed < 200; seed++) {
    const random = randomNumbers(seed);
    const tracker = begun(true, keptWhole(seed));
    const shown = new Set<number>();
    const received: number[] = [];
    let acked = 0;
    let begin = 0;
    for (let round = 0; round < 12; round++) {
      for (let more = 0; more < 8; more++) {
        shown.add(random(1, 80));
      }
      let coming = [...shown].filter((number) => number > begin).sort((one, other) => one - other);
      coming = coming.slice(0, random(0, 30));
      for (let sequence = 1; coming.length > 0;) {
        const chunk = coming.slice(0, random(1, 4));
        coming = coming.slice(chunk.length);
        received.push(...(numbers(tracker.arrive(BigInt(sequence), events(...chunk))) as number[]));
        sequence += chunk.length;
        if (random(0, 1) === 1) {
          acked = random(acked, received.length);
          tracker.ackedSequence(acked);
        }
      }
      begin = numberOf(tracker.ackedPosition(acked));
      assert.ok(
        received.slice(acked).every((number) => number > begin),
        `seed ${String(seed)}: begins after ${String(begin)}`,
      );
      tracker.begin(at(begin), acked);
    }
    assert.equal(new Set(received).size, received.length, `seed ${String(seed)}: handed out twice`);
  }
});

test("random reconnects give every event once, in order", () => {
  // The server begins after the event that was acked when the stream was asked for, as far as its last one had come: there
  // could have been new events among what it had not repeated.
  for (let seed = 0; seed < 200; seed++) {
    const random = randomNumbers(seed);
    const tracker = begun(true, keptWhole(seed));
    const seen: unknown[] = [];
    let acked = 0;
    let begin = 0;
    while (seen.length < 60) {
      let sequence = 1;
      for (let batches = random(0, 5); batches > 0; batches--) {
        const chunk = Array.from({ length: random(1, 4) }, (_, index) => begin + sequence + index);
        for (const fresh of tracker.arrive(BigInt(sequence), events(...chunk))) {
          assert.equal(fresh.firstSequence, seen.length + 1, `seed ${String(seed)}`);
          seen.push(...numbers([fresh]));
        }
        sequence += chunk.length;
        acked = random(0, 1) === 0 ? acked : random(acked, seen.length);
        // Sequence s of this stream is event begin + s: everything acked is covered, and nothing else.
        const covered = Math.min(Math.max(acked, begin), begin + sequence - 1);
        assert.equal(begin + tracker.ackedSequence(acked), covered, `seed ${String(seed)}`);
      }
      const known = acked;
      const wanted = Math.min(known, begin + sequence - 1);
      begin = numberOf(tracker.ackedPosition(known));
      assert.equal(begin, wanted, `seed ${String(seed)}`);
      acked = random(acked, seen.length); // Acked between asking and Opened.
      tracker.begin(at(begin), known);
    }
    assert.deepEqual(
      seen,
      Array.from(seen, (_, index) => index + 1),
      `seed ${String(seed)}`,
    );
  }
});

test("where a token is missing the last known position counts", () => {
  const tracker = begun();
  tracker.arrive(1n, events(1, 2));
  const stripped = Buffer.concat([serialize({ n: 3 }), event(4)]);
  tracker.arrive(3n, new BsonBatch(stripped, 2, at(4), undefined, {}).part(0, 1));
  tracker.arrive(4n, events(5));
  assert.deepEqual(tracker.ackedPosition(3), at(2), "nothing is made up");
});

test("the position of a token has its time", () => {
  const tracker = begun();
  tracker.arrive(1n, events(1, 2).part(0, 1));
  tracker.arrive(2n, events(2));
  const acked = tracker.ackedPosition(1);
  assert.deepEqual([acked.resumeToken, acked.clusterTime], [token(1), at(1).clusterTime]);
});

test("progress past all repeats ends the wait for them", () => {
  const tracker = begun();
  tracker.arrive(1n, events(1, 2, 3));
  tracker.begin(at(5), 1);
  tracker.progress(at(3));
  assert.ok(tracker.expectsRepeats());
  tracker.progress(at(5));
  assert.ok(!tracker.expectsRepeats(), "the stored position was moved forward meanwhile");
  assert.deepEqual(tracker.latest, at(5));
});

test("what is unacked is kept whole up to a bound, and recognised beyond it", () => {
  const size = events(1).sizeBytes;
  const tracker = begun(true, 3 * size);
  for (let number = 1; number <= 200; number++) {
    tracker.arrive(BigInt(number), events(number));
    assert.ok(tracker.wholeBytes <= 3 * size);
  }
  tracker.begin(at(7), 7);
  assert.deepEqual(
    numbers(tracker.arrive(1n, events(...Array.from({ length: 195 }, (_, index) => 8 + index)))),
    [201, 202],
  );
});

test("the memory of a batch that is only recognised is given back", { timeout: 60_000 }, async () => {
  const { gc } = globalThis;
  assert.ok(gc, "run with --expose-gc");
  const tracker = begun(true, 0);
  let collected = 0;
  const registry = new FinalizationRegistry(() => collected++);
  for (let number = 1; number <= 20; number++) {
    const raw = new Uint8Array(event(number));
    registry.register(raw.buffer, undefined);
    tracker.arrive(BigInt(number), new BsonBatch(Buffer.from(raw.buffer), 1, at(number), undefined, {}));
  }
  while (collected < 19) {
    gc();
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.equal(tracker.received, 20);
});

test("a batch that is only recognised holds none of the memory that small buffers share", () => {
  // A message below half of Buffer.poolSize lies in a slab with the copies of its position.
  const tracker = begun(true, 0);
  tracker.arrive(1n, events(1, 2));
  tracker.arrive(3n, events(3));
  const { position, token } = tracker.ackedPosition(2);
  for (const bytes of [position, token]) {
    assert.equal(bytes.buffer.byteLength, Buffer.byteLength("P2") + 3 * feedPosition(2).resumeToken.length);
  }
});

test("an event whose text is not UTF-8 is recognised when it comes again", () => {
  // $replaceRoot has moved its _id.
  const bytes = Buffer.concat([1, 2, 3].map((n) => notUtf8(serialize({ text: "é", _id: token(n), n }))));
  const batch = (): Batch => new BsonBatch(bytes, 3, at(3), undefined, {});
  for (const wholeBytesMax of [0, 2 ** 40]) {
    const tracker = begun(true, wholeBytesMax);
    tracker.arrive(1n, batch());
    assert.deepEqual(tracker.ackedPosition(2).resumeToken, token(2));
    tracker.begin(at(0), 0);
    assert.deepEqual(tracker.arrive(1n, batch()), []);
    assert.ok(!tracker.expectsRepeats());
    assert.equal(tracker.ackedSequence(3), 3);
  }
});

test("a defect is not taken for an event without a token", () => {
  const tracker = begun(true, 0);
  const batch = events(1);
  batch.eventKey = () => {
    throw new TypeError("a defect");
  };
  assert.throws(() => tracker.arrive(1n, batch), { message: "a defect" });
});

test("an event that cannot be decoded is kept, repeated and acked as any other", () => {
  const texts = (...tokens: string[]): Batch => new JsonBatch(tokens, at(3), undefined, {});
  const [good, broken] = [`{"_id":{"_data":"${token(1)._data}"},"n":1}`, '{"_id":'];
  for (const wholeBytesMax of [0, 2 ** 40]) {
    const tracker = begun(true, wholeBytesMax);
    tracker.arrive(1n, texts(broken, good));
    tracker.begin(at(0), 0);
    const again = tracker.arrive(1n, texts(broken, good));
    assert.deepEqual(
      again.map((batch) => batch.length),
      [1],
    );
    assert.throws(() => again[0]?.decode(0), ProtocolError);
    assert.equal(tracker.ackedSequence(3), 2);
  }
});

test("what was acked makes room for whole batches", () => {
  const size = events(1).sizeBytes;
  const tracker = begun(true, 2 * size);
  for (let number = 1; number <= 100; number++) {
    tracker.arrive(BigInt(number), events(number));
    if (number % 5 === 0) {
      tracker.ackedSequence(number);
    }
    assert.equal(tracker.wholeBytes, size * Math.min(2, number % 5));
  }
  for (let number = 101; number <= 103; number++) {
    tracker.arrive(BigInt(number), events(number), number - 1);
  }
  assert.equal(tracker.wholeBytes, size);
  tracker.forget();
  assert.equal(tracker.wholeBytes, 0);
});
