/** The package as its users get it: what stands in it, and how it is loaded. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import * as source from "../src/index.js";

const FOLDER = fileURLToPath(new URL("../..", import.meta.url));

function read(path: string): string {
  return readFileSync(join(FOLDER, path), "utf8");
}

test("it is loaded by import and by require, with the same names", async () => {
  const name = "feedmux";
  const imported = (await import(name)) as typeof source;
  const required = createRequire(import.meta.url)(name) as typeof source;
  assert.deepEqual(Object.keys(imported).sort(), Object.keys(source).sort());
  assert.equal(required.Client, imported.Client);
});

test("the version is package.json's", () => {
  assert.equal(source.VERSION, (JSON.parse(read("package.json")) as { version: string }).version);
});

test("the README shows the example as it is", () => {
  assert.ok(read("README.md").includes("```js\n" + read("examples/orders.js") + "```\n"));
});

test("the lock file names no registry", () => {
  assert.doesNotMatch(read("package-lock.json"), /"resolved"|registry/);
});
