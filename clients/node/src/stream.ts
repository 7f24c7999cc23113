/**
 * One Subscribe call: bytes up, bytes down, and one end.
 *
 * Every message is taken from grpc-js as it comes and never left with it: it throws away what nobody has read when a
 * status other than OK arrives (github.com/grpc/grpc-node/issues/2764), and a session ends with such a status right
 * after its last events.
 */

import { type ClientDuplexStream, status as Status, type StatusObject } from "@grpc/grpc-js";

import type { FeedmuxError } from "./errors.js";
import { errorFromStatus } from "./status.js";

export type Call = ClientDuplexStream<Uint8Array, Buffer>;

/** `onEnd` is called once, after all messages; without an error when the server ended the call with OK. */
export function listen(call: Call, onMessage: (message: Buffer) => void, onEnd: (error?: FeedmuxError) => void): void {
  let ended: StatusObject | undefined;
  call.on("data", onMessage);
  call.on("status", (status: StatusObject) => {
    ended = status;
  });
  // The status says the same, but may come before the last message; the end comes after it.
  call.on("error", () => undefined);
  call.on("end", () => {
    onEnd(ended && ended.code !== Status.OK ? errorFromStatus(ended) : undefined);
  });
}
