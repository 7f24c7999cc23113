/** SilenceDetector is counted in time during which the process ran. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { SilenceDetector } from "../src/silence-detector.js";

function silentTicks(silence: SilenceDetector, ticks: number, nowMs: number): boolean[] {
  return Array.from({ length: ticks }, (_, index) => silence.tick(nowMs + (index + 1) * silence.tickMs));
}

function onlyTheLast(ticks: number): boolean[] {
  return Array.from({ length: ticks }, (_, index) => index === ticks - 1);
}

test("three silent intervals are too long", () => {
  const silence = new SilenceDetector(10_000, 100);
  assert.deepEqual([silence.tickMs, silence.mostMs], [1_000, 30_000]);
  assert.deepEqual(silentTicks(silence, 30, 100), onlyTheLast(30));
});

test("a message, and a new interval, begin the count again", () => {
  const silence = new SilenceDetector(10_000, 0);
  silentTicks(silence, 29, 0);
  silence.heard();
  assert.deepEqual(silentTicks(silence, 31, 29_000), onlyTheLast(31));
  silence.allow(20_000);
  assert.deepEqual(silentTicks(silence, 31, 60_000), onlyTheLast(31));
});

test("time in which nothing could be heard counts as two ticks", () => {
  for (const blockedMs of [2_000, 29_500, 31_000, 3_600_000]) {
    const silence = new SilenceDetector(10_000, 0);
    silentTicks(silence, 27, 0);
    assert.equal(silence.tick(27_000 + blockedMs), false);
    assert.equal(silence.tick(28_000 + blockedMs), true);
  }
});
