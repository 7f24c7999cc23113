/** What waits between the two sides of a session. */

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Notice } from "../src/index.js";
import { UnavailableError } from "../src/errors.js";
import { SessionBuffer } from "../src/session-buffer.js";

test("notices of an outage that nobody reads do not pile up", () => {
  const buffer = new SessionBuffer();
  const disconnected = (text: string): Notice => ({
    kind: "disconnected",
    error: new UnavailableError(text),
    retryInMs: 1,
  });
  const degraded = (unavailable: boolean): Notice => ({ kind: "degraded", dependency: "source", unavailable });
  const draining: Notice = { kind: "draining", deadlineMs: 1, position: Buffer.alloc(0) };
  const [first, last, batch] = [disconnected("first"), disconnected("last"), { snapshot: false } as never];
  buffer.put({ notice: first });
  buffer.put({ batch });
  for (let i = 0; i < 100; i++) {
    for (const notice of [first, degraded(true), degraded(false), draining, last]) {
      buffer.put({ notice });
    }
  }
  const shown = Array.from({ length: 7 }, () => buffer.get());
  const notices = [degraded(true), degraded(false), draining, last].map((notice) => ({ notice }));
  assert.deepEqual(shown, [{ notice: first }, { batch }, ...notices, undefined]);
});
