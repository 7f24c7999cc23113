/** Which class an error gets, what a session does about it, how long it waits; and the credit window. */

import assert from "node:assert/strict";
import { test } from "node:test";

import * as feedmux from "../src/index.js";
import { makeError } from "../src/errors.js";
import { ErrorReason } from "../src/gen/feedmux/v1/errors_pb.js";
import { LONGEST_TIMER_MS, sessionOptions } from "../src/options.js";
import { Backoff, nextStep, type Step } from "../src/recovery.js";
import { CreditWindow } from "../src/window.js";

type Case = [
  status: string,
  reason: string,
  cause: string,
  retryAfterMs: number | undefined,
  typeof feedmux.FeedmuxError,
  Step,
];

const CASES: Case[] = [
  ["UNAVAILABLE", "", "", undefined, feedmux.UnavailableError, "reopen"],
  ["UNAVAILABLE", "DRAINING", "", 1, feedmux.UnavailableError, "reopen"],
  ["UNAVAILABLE", "SOURCE_UNAVAILABLE", "", 1, feedmux.UnavailableError, "reopen"],
  ["DEADLINE_EXCEEDED", "", "", undefined, feedmux.UnavailableError, "reopen"],
  ["INTERNAL", "", "", undefined, feedmux.InternalError, "reopen"],
  ["INTERNAL", "INTERNAL", "", undefined, feedmux.InternalError, "raise"],
  ["UNKNOWN", "", "", undefined, feedmux.FeedmuxError, "reopen"],
  ["CANCELLED", "", "", undefined, feedmux.FeedmuxError, "reopen"],
  ["UNIMPLEMENTED", "", "", undefined, feedmux.FeedmuxError, "raise"],
  ["RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", "", 2, feedmux.QuotaExceededError, "reopen"],
  ["RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", "", undefined, feedmux.QuotaExceededError, "raise"],
  ["ABORTED", "FENCED", "SEEK", undefined, feedmux.FencedError, "reopen at stored"],
  ["ABORTED", "FENCED", "UPDATE", undefined, feedmux.FencedError, "reopen"],
  ["ABORTED", "FENCED", "LEASE", undefined, feedmux.FencedError, "reopen"],
  ["ABORTED", "FENCED", "TAKEOVER", undefined, feedmux.FencedError, "raise"],
  ["ABORTED", "FENCED", "DELETE", undefined, feedmux.SubscriptionNotFoundError, "raise"],
  ["ABORTED", "FENCED", "", undefined, feedmux.FencedError, "raise"],
  ["ABORTED", "GRANTS_CHANGED", "", undefined, feedmux.AbortedError, "reopen"],
  ["ABORTED", "ENDED_BY_OPERATOR", "", undefined, feedmux.EndedByOperatorError, "raise"],
  ["OUT_OF_RANGE", "HISTORY_LOST", "", undefined, feedmux.HistoryLostError, "raise"],
  ["OUT_OF_RANGE", "TIMELINE_FORKED", "", undefined, feedmux.TimelineForkedError, "raise"],
  ["OUT_OF_RANGE", "EVENT_TOO_LARGE", "", undefined, feedmux.OutOfRangeError, "raise"],
  ["FAILED_PRECONDITION", "FEED_INVALIDATED", "", undefined, feedmux.FeedInvalidatedError, "raise"],
  ["FAILED_PRECONDITION", "SUBSCRIPTION_BUSY", "", undefined, feedmux.SubscriptionBusyError, "raise"],
  ["NOT_FOUND", "SUBSCRIPTION_NOT_FOUND", "", undefined, feedmux.SubscriptionNotFoundError, "raise"],
  ["NOT_FOUND", "SOURCE_NOT_FOUND", "", undefined, feedmux.NotFoundError, "raise"],
  ["ALREADY_EXISTS", "SUBSCRIPTION_EXISTS", "", undefined, feedmux.SubscriptionExistsError, "raise"],
  ["INVALID_ARGUMENT", "POSITION_FOREIGN", "", undefined, feedmux.PositionInvalidError, "raise"],
  ["INVALID_ARGUMENT", "OPTION_REFUSED", "", undefined, feedmux.OptionRefusedError, "raise"],
  ["INVALID_ARGUMENT", "A_REASON_OF_THE_FUTURE", "", undefined, feedmux.InvalidArgumentError, "raise"],
  ["UNAUTHENTICATED", "UNAUTHENTICATED", "", undefined, feedmux.UnauthenticatedError, "raise"],
  ["PERMISSION_DENIED", "NAMESPACE_DENIED", "", undefined, feedmux.PermissionDeniedError, "raise"],
];

test("every status and reason has its class, and what is done about it", () => {
  for (const [status, reason, cause, retryAfterMs, kind, step] of CASES) {
    const metadata: Record<string, string> = cause === "" ? {} : { cause };
    const error = makeError(status, "said", { reason, metadata, retryAfterMs });
    assert.equal(error.constructor, kind, `${status} ${reason}`);
    assert.equal(error.name, kind.name);
    assert.equal(nextStep(error), step, `${status} ${reason} ${cause}`);
    assert.ok(error.message.endsWith("said"));
  }
  assert.equal(nextStep(new feedmux.ProtocolError("")), "raise");
  assert.equal(nextStep(new feedmux.SessionClosedError()), "raise");
  assert.equal(nextStep(makeError("UNAUTHENTICATED", "", { reason: "UNAUTHENTICATED" }), true), "reopen");
});

test("the reasons above are the protocol's", () => {
  const known = new Set(Object.keys(ErrorReason).filter((name) => Number.isNaN(Number(name))));
  for (const [, reason] of CASES) {
    assert.ok(reason === "" || reason === "A_REASON_OF_THE_FUTURE" || known.has(reason), reason);
  }
});

test("backoff doubles its bound up to the most, and waits at least what the server asked", () => {
  const backoff = new Backoff(100, 350, () => 0.5);
  assert.deepEqual(
    [1, 2, 3, 4].map(() => backoff.nextMs()),
    [50, 100, 175, 175],
  );
  assert.equal(backoff.nextMs(1000), 1175);
  assert.equal(backoff.nextMs(LONGEST_TIMER_MS), LONGEST_TIMER_MS, "a longer timer would end at once");
  backoff.reset();
  assert.equal(backoff.nextMs(), 50);
});

test("what waits and what was granted never exceed the window", () => {
  const window = new CreditWindow(8, 1000);
  assert.deepEqual(window.open(), { events: 8, bytes: 1000 });
  window.receive(4, 400, 100);
  assert.equal(window.refill(), undefined);
  window.take(1, 100);
  assert.equal(window.refill(), undefined, "less than a quarter");
  window.take(1, 100);
  assert.deepEqual(window.refill(), { events: 2, bytes: 200 });
  assert.deepEqual(window.open(), { events: 6, bytes: 800 }, "two events wait");
  window.limit(4, 0);
  assert.throws(() => {
    window.receive(5, 5, 1);
  }, feedmux.ProtocolError);
  window.take(7, 205);
  assert.deepEqual(window.open(), { events: 8, bytes: 1000 }, "the next server limits it no longer");
});

test("a server that allows less than the one before is granted more", () => {
  const window = new CreditWindow(100, 1000);
  window.open();
  window.receive(5, 1500, 600);
  assert.deepEqual(window.open(), { events: 0, bytes: 0 }, "the bytes are used up");
  window.limit(10, 0);
  window.take(5, 1500);
  assert.deepEqual(window.refill(), { events: 10, bytes: 1000 });
});

test("one event may overdraw the bytes, and its debt is paid first", () => {
  const window = new CreditWindow(8, 1000);
  window.open();
  window.receive(1, 3000, 3000);
  assert.equal(window.refill(), undefined);
  window.take(1, 3000);
  assert.deepEqual(window.refill(), { events: 1, bytes: 3000 });
  window.receive(1, 1000, 1000);
  assert.throws(() => {
    window.receive(1, 1, 1);
  }, feedmux.ProtocolError);
});

test("options that cannot be are refused; what is left out is the client's or the default", () => {
  assert.equal(sessionOptions({ windowEvents: undefined }, { windowEvents: 5 }).windowEvents, 5);
  assert.equal(sessionOptions({ windowEvents: 7 }, { windowEvents: 5 }).windowEvents, 7);
  for (const wrong of [
    { windowEvents: 0 },
    { windowBytes: 2 ** 41 },
    { messageBytesMax: 1 },
    { heartbeatMs: 999 },
    ...[
      "ackIntervalMs",
      "openTimeoutMs",
      "reconnectTimeoutMs",
      "closeTimeoutMs",
      "backoffFirstMs",
      "backoffMostMs",
    ].flatMap((name) => [{ [name]: -1 }, { [name]: NaN }]),
    { format: "json" as never },
  ]) {
    assert.throws(() => sessionOptions(wrong), RangeError);
  }
  for (const name of ["windowEvents", "windowBytes", "messageBytesMax", "heartbeatMs", "backoffMostMs"]) {
    for (const value of ["70000", 70_000n, null, true]) {
      assert.throws(() => sessionOptions({ [name]: value }), {
        name: "TypeError",
        message: new RegExp(`^${name} is a number, not`),
      });
    }
  }
  for (const name of ["windowEvents", "windowBytes", "messageBytesMax"]) {
    assert.throws(() => sessionOptions({ [name]: 70_000.5 }), {
      name: "TypeError",
      message: `${name} is an integer, not 70000.5`,
    });
  }
  assert.throws(() => sessionOptions({ bson: { useBigint64: true } as never }), /bson: there is no "useBigint64"/);
  assert.throws(() => new feedmux.Client("x:1", { apiKey: "a", token: "b" }), TypeError);
  assert.throws(() => new feedmux.Client("x:1", { timeoutMs: NaN }), RangeError);
});
