/** The package as its users get it: what stands in it, how it is loaded, and what its generated part was made from. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
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

test("the generated code is what `npm run generate` makes", () => {
  const folder = mkdtempSync(join(tmpdir(), "feedmux-generated-"));
  try {
    execFileSync(join(FOLDER, "node_modules/.bin/buf"), ["generate", "--output", folder], { cwd: FOLDER });
    const made = join(folder, "src/gen");
    const files = (root: string): string[] =>
      readdirSync(root, { recursive: true, encoding: "utf8" })
        .filter((name) => name.endsWith(".ts"))
        .sort();
    assert.ok(files(made).length > 0);
    assert.deepEqual(files(made), files(join(FOLDER, "src/gen")));
    for (const file of files(made)) {
      assert.equal(read(join("src/gen", file)), readFileSync(join(made, file), "utf8"), file);
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});
