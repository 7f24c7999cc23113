/** What is left of connections and of calls of a token function. */

import assert from "node:assert/strict";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import * as feedmux from "../src/index.js";
import { Transport } from "../src/transport.js";
import { opened, ScriptedServer } from "./scripted-server.js";

const LIMIT = { timeout: 120_000 };

/** Resolves when the other side has closed a connection, and not only said that it says no more. */
async function closed(socket: Socket): Promise<void> {
  socket.on("error", () => undefined);
  await new Promise((resolve) => socket.once("end", resolve));
  while (!socket.destroyed) {
    socket.write("x");
    await sleep(20);
  }
}

/** Whatever is ready has run. */
async function turn(): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
}

test("a connection that was left because the server was silent is closed", LIMIT, async () => {
  await using server = await ScriptedServer.start([
    async (call) => {
      call.send(opened({ heartbeatS: 1 }));
      await call.cancelled;
    },
  ]);
  const [host, port] = server.address.split(":");
  const ends: Promise<void>[] = [];
  const sockets: Socket[] = [];
  let isFrozen = false;
  const proxy = createServer({ allowHalfOpen: true }, (near) => {
    const far = connect({ host: String(host), port: Number(port) });
    far.on("error", () => undefined);
    near.on("data", (data: Buffer) => isFrozen || far.write(data));
    far.on("data", (data: Buffer) => isFrozen || near.write(data));
    ends.push(closed(near));
    sockets.push(near, far);
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  await using client = new feedmux.Client(`127.0.0.1:${String((proxy.address() as AddressInfo).port)}`);
  const notices: feedmux.Notice[] = [];
  const options = {
    heartbeatMs: 1000,
    backoffFirstMs: 0,
    backoffMostMs: 0,
    onNotice: (it: feedmux.Notice) => notices.push(it),
  };
  const session = await client.feed({ database: "d" }).open(options);
  isFrozen = true;
  const waiting = session.next();
  while (notices.length < 2) {
    await sleep(20);
  }
  await ends[0]; // was open
  await ends[1]; // was being opened
  await session.close();
  assert.equal(await waiting, undefined);
  sockets.forEach((socket) => socket.destroy());
  proxy.close();
});

test("calls of a token function that never return do not pile up", LIMIT, async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const given: ((error: Error) => void)[] = [];
  const token = async (): Promise<string> => await new Promise<string>((_, reject) => given.push(reject));
  const transport = new Transport({ address: "127.0.0.1:1", token, tls: undefined, channelOptions: {} }, 1000);
  const failures: unknown[] = [];
  for (let i = 0; i < 100; i++) {
    transport.subscribe("").catch((error: unknown) => failures.push(error));
  }
  await turn();
  assert.equal(given.length, 16);
  given[0]?.(new Error("not now"));
  await turn();
  assert.equal(given.length, 17, "one that waits takes the place of one that has returned");
  context.mock.timers.tick(30_000);
  await turn();
  assert.equal(failures.length, 84);
  assert.match(String(failures[1]), /16 calls of the token function have not returned/);
});
