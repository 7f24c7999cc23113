/** The states of a session's connection, as one table that all clients share. docs/protocol.md shows it. Pure. */

/**
 * What the connection does now. `RETRYING` and `WAITING` wait before the next attempt, `RETRYING` before the first
 * stream was open. `LAST_OPENING`: closed without a stream, one more stream is being opened, only to send the acks.
 * `CLOSING`: closed with an open stream, the server stores the acks and ends the stream.
 */
export type State = "OPENING" | "RETRYING" | "OPEN" | "WAITING" | "REOPENING" | "LAST_OPENING" | "CLOSING" | "ENDED";

/**
 * What happens to the connection. The stream ended: `LOST` with an error that passes, without an error, or because it was
 * silent; `MOVED` because the stored position was moved; `FAILED` with any other error. `TIME_OVER`: the time to open, or
 * to reopen, is over. `CLOSE`: closed by the user, and the server has confirmed all acks; `CLOSE_WITH_ACKS`: and the
 * server may not have some acks. `ABANDON`: the time to close is over, or the user dropped the session.
 */
export type Event =
  | "OPENED"
  | "MESSAGE"
  | "LOST"
  | "MOVED"
  | "FAILED"
  | "TIME_OVER"
  | "BACKOFF_OVER"
  | "CLOSE"
  | "CLOSE_WITH_ACKS"
  | "ABANDON";

/**
 * What the client does about an event. `NONE`: the next stream resumes after the last ack. `FORGET` the unacked events:
 * it begins at the stored position. `RAISE`: end the session with the error.
 */
export type Action = "NONE" | "FORGET" | "RAISE";

/** The next state, and what to do. */
export type Transition = readonly [State, Action];

const END: Transition = ["ENDED", "NONE"];
const RAISE: Transition = ["ENDED", "RAISE"];

/** A pair that is not here is illegal. If the server sends a message in such a state, it breaks the protocol. */
export const TABLE: Readonly<Record<State, Readonly<Partial<Record<Event, Transition>>>>> = {
  OPENING: {
    OPENED: ["OPEN", "NONE"],
    LOST: ["RETRYING", "NONE"],
    MOVED: ["RETRYING", "FORGET"],
    FAILED: RAISE,
    TIME_OVER: RAISE,
    CLOSE: END,
    ABANDON: END,
  },
  RETRYING: {
    BACKOFF_OVER: ["OPENING", "NONE"],
    TIME_OVER: RAISE,
    CLOSE: END,
    CLOSE_WITH_ACKS: END,
    ABANDON: END,
  },
  OPEN: {
    MESSAGE: ["OPEN", "NONE"],
    LOST: ["WAITING", "NONE"],
    MOVED: ["WAITING", "FORGET"],
    FAILED: RAISE,
    TIME_OVER: RAISE,
    CLOSE: ["CLOSING", "NONE"],
    CLOSE_WITH_ACKS: ["CLOSING", "NONE"],
    ABANDON: END,
  },
  WAITING: {
    BACKOFF_OVER: ["REOPENING", "NONE"],
    TIME_OVER: RAISE,
    CLOSE: END,
    CLOSE_WITH_ACKS: ["LAST_OPENING", "NONE"],
    ABANDON: END,
  },
  REOPENING: {
    OPENED: ["OPEN", "NONE"],
    LOST: ["WAITING", "NONE"],
    MOVED: ["WAITING", "FORGET"],
    FAILED: RAISE,
    TIME_OVER: RAISE,
    CLOSE: END,
    CLOSE_WITH_ACKS: ["LAST_OPENING", "NONE"],
    ABANDON: END,
  },
  LAST_OPENING: {
    OPENED: ["CLOSING", "NONE"],
    LOST: END,
    MOVED: END,
    FAILED: END,
    TIME_OVER: END,
    BACKOFF_OVER: ["LAST_OPENING", "NONE"], // Closed during the backoff.
    CLOSE: END,
    CLOSE_WITH_ACKS: ["LAST_OPENING", "NONE"],
    ABANDON: END,
  },
  CLOSING: {
    MESSAGE: ["CLOSING", "NONE"],
    LOST: END,
    MOVED: END,
    FAILED: END,
    TIME_OVER: END,
    CLOSE: ["CLOSING", "NONE"],
    CLOSE_WITH_ACKS: ["CLOSING", "NONE"],
    ABANDON: END,
  },
  ENDED: { CLOSE: END, CLOSE_WITH_ACKS: END, ABANDON: END },
};

/** What the event leads to. Throws where it cannot happen. */
export function transition(state: State, event: Event): Transition {
  const found = TABLE[state][event];
  if (found === undefined) {
    throw new Error(`${event} in the state ${state}`);
  }
  return found;
}

/** Whether the session has never been open. */
export function isFirstOpening(state: State): boolean {
  return state === "OPENING" || state === "RETRYING";
}

/** Whether the server has sent Opened on the present stream. */
export function hasStream(state: State): boolean {
  return state === "OPEN" || state === "CLOSING";
}
