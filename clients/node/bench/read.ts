/**
 * Reads a durable subscription up to an event of a number, decoding and acking each one, and prints what that took.
 * bench/clients.py starts it; see there.
 */

import { once } from "node:events";
import { parseArgs } from "node:util";

import { type ChangeEvent, Client, type Session } from "../src/index.js";

const { values } = parseArgs({
  options: {
    endpoint: { type: "string", default: "localhost:7117" },
    subscription: { type: "string", default: "" },
    count: { type: "string", default: "0" },
    /** `document`: all of each event; `raw`: nothing but its bytes. */
    decode: { type: "string", default: "document" },
  },
});
const count = Number(values.count);
const decodes = values.decode === "document";

/** The event of that number. */
async function readUpTo(session: Session): Promise<ChangeEvent> {
  let read = 0;
  let bytes = 0;
  for await (const event of session) {
    if (decodes) {
      bytes += Object.keys(event.document).length;
    } else {
      bytes += event.raw.length;
    }
    session.ack(event);
    if (++read === count) {
      return event;
    }
  }
  throw new Error(`the session was closed after ${String(read)} events and ${String(bytes)} bytes`);
}

const client = new Client(values.endpoint);
const subscription = client.subscription(values.subscription);
await subscription.get();
console.log("ready");
await once(process.stdin, "data");
process.stdin.unref();

const began = performance.now();
const cpu = process.cpuUsage();
const session = await subscription.open();
const last = await readUpTo(session);
const elapsedMs = performance.now() - began;
const { user, system } = process.cpuUsage(cpu);
console.log(
  JSON.stringify({
    elapsed_s: elapsedMs / 1e3,
    cpu_s: (user + system) / 1e6,
    count,
    last_id: Number((last.document["documentKey"] as { _id: unknown })._id),
  }),
);
await client.close();
