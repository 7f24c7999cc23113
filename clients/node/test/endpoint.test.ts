/** Which way leads to a server: through the proxy that the environment names, or past it. */

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import { create, toBinary } from "@bufbuild/protobuf";

import { isLoopback } from "../src/endpoint.js";
import * as feedmux from "../src/index.js";
import { ResolvePositionResponseSchema } from "../src/gen/feedmux/v1/change_feed_pb.js";
import { ScriptedServer } from "./scripted-server.js";

test("addresses of this machine are known in each form", () => {
  const here = ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[0:0:0:0:0:0:0:1]:1", "localhost:1", "LOCALHOST.:1"];
  here.push("dns:localhost:1", "dns:///127.0.0.1:1", "dns://8.8.8.8/localhost:1", "ipv4:127.0.0.1:1", "ipv6:[::1]:1");
  const elsewhere = ["128.0.0.1:1", "[::2]:1", "localhost.example.com:1", "127.0.0.1.example.com:1", "dns:///feeds:1"];
  elsewhere.push("dns://127.0.0.1/feeds:1", "ipv4:10.0.0.1:1,127.0.0.1:1", "unix:/run/localhost:1");
  assert.deepEqual(
    [...here, ...elsewhere].filter((address) => isLoopback(address)),
    here,
  );
});

test("no proxy is asked for a server on this machine, unless the options say so", { timeout: 60_000 }, async () => {
  const asked: string[] = [];
  const proxy = createServer().on("connect", (request, socket) => {
    asked.push(request.url ?? "");
    socket.end("HTTP/1.1 502 Bad Gateway\r\n\r\n");
  });
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  const answer = toBinary(ResolvePositionResponseSchema, create(ResolvePositionResponseSchema, {}));
  await using server = await ScriptedServer.start([], { "ChangeFeed/ResolvePosition": () => answer });
  const { port } = proxy.address() as AddressInfo;
  const resolve = async (target: string, channelOptions = {}): Promise<void> => {
    await using client = new feedmux.Client(target, { channelOptions });
    await client.feed({ database: "d" }).resolve("latest");
  };
  const names = ["grpc_proxy", "https_proxy", "http_proxy"];
  const set = (chosen?: string): void => {
    for (const name of [...names, "no_grpc_proxy", "no_proxy"]) {
      process.env[name] = name === chosen ? `http://127.0.0.1:${String(port)}` : "";
    }
  };
  try {
    for (const name of names) {
      set(name);
      await resolve(server.address);
      await resolve(`dns:///${server.address}`);
    }
    assert.deepEqual(asked, []);
    for (const name of names) {
      set(name);
      await assert.rejects(resolve("feeds.invalid:7117"), feedmux.UnavailableError);
      await assert.rejects(resolve(server.address, { "grpc.enable_http_proxy": 1 }), feedmux.UnavailableError);
    }
    assert.deepEqual(new Set(asked), new Set(["feeds.invalid:7117", server.address]));
  } finally {
    proxy.close();
  }
});
