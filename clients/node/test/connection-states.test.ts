/** The table of connection states and the reactions to errors are those of all clients. */

import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { type Event, type State, TABLE, transition } from "../src/connection-states.js";
import { makeError, ProtocolError } from "../src/errors.js";
import { ENDINGS, nextStep, type Step } from "../src/recovery.js";

interface Vectors {
  transitions: { state: State; event: Event; next: State | null; action: string | null }[];
  decisions: {
    status?: string;
    reason?: string;
    cause?: string;
    retry_info?: boolean;
    new_token?: boolean;
    violation?: boolean;
    step: string;
  }[];
  events: { step: string; event: Event }[];
}

const PATH = new URL("../../../../tests/conformance/clients/vectors/connection.json", import.meta.url);
const ELSEWHERE = { skip: !existsSync(PATH) && "the vectors are in the repository only" };

const STEPS: Record<string, Step> = { REOPEN: "reopen", REOPEN_AT_STORED: "reopen at stored", RAISE: "raise" };

function vectors(): Vectors {
  return JSON.parse(readFileSync(PATH, "utf8")) as Vectors;
}

test("the table of states is that of all clients", ELSEWHERE, () => {
  const { transitions } = vectors();
  for (const { state, event, next, action } of transitions) {
    assert.deepEqual(TABLE[state][event], next === null ? undefined : [next, action], `${event} in ${state}`);
  }
  const legal = Object.values(TABLE).flatMap((events) => Object.keys(events));
  assert.equal(legal.length, transitions.filter(({ next }) => next !== null).length);
});

test("the reactions to errors are those of all clients", ELSEWHERE, () => {
  const { decisions, events } = vectors();
  assert.ok(decisions.length > 0);
  for (const each of decisions) {
    const error =
      each.violation === true
        ? new ProtocolError("a gap")
        : makeError(each.status ?? "", "", {
            reason: each.reason ?? "",
            metadata: { cause: each.cause ?? "" },
            retryAfterMs: each.retry_info === true ? 1 : undefined,
          });
    assert.equal(nextStep(error, each.new_token), STEPS[each.step], JSON.stringify(each));
  }
  assert.deepEqual(ENDINGS, Object.fromEntries(events.map(({ step, event }) => [STEPS[step], event])));
});

test("an illegal transition throws", () => {
  assert.throws(() => transition("OPEN", "BACKOFF_OVER"), /BACKOFF_OVER in the state OPEN/);
});
