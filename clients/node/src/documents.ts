/** BSON of the documents that users give: pipelines, collations, comments and resume tokens. */

import { types } from "node:util";

import { Code, type DBRef, type Document, serialize } from "bson";

const INT64_MAX = 2n ** 63n - 1n;
/** Deeper than MongoDB allows. A document that contains itself ends here too. */
const DEPTH_MAX = 200;

/**
 * A document as BSON, with every value that it has. Throws TypeError for a value that is not one of BSON's; `what` names
 * the document in its message.
 *
 * bson's `serialize` leaves out what it does not know, undefined among it, or writes something else. In a filter that is
 * a condition less: `{ owner: undefined }` would match the events of all owners. The MongoDB driver's answer, null,
 * would still match every event without an owner, such as all deletes. So the client asks what is meant.
 */
export function encode(document: unknown, what: string): Uint8Array {
  return serialize(checked(document, what, 0) as Document, { ignoreUndefined: false });
}

/**
 * Throws TypeError for a text with half of a surrogate pair, at any depth of a message: the text cut within an emoji, for
 * example. UTF-8 has no such text, and what JavaScript writes instead is another one: another name, another condition.
 */
export function checkTexts(value: unknown, path: string): void {
  if (typeof value === "string") {
    checkText(value, path);
  } else if (typeof value === "object" && value !== null && !types.isUint8Array(value)) {
    for (const [name, each] of Object.entries(value)) {
      checkTexts(each, `${path}.${name}`);
    }
  }
}

function checkText(text: string, path: string): void {
  if (/\p{Surrogate}/u.test(text)) {
    throw new TypeError(`${path} has half of a surrogate pair, which UTF-8 does not have: was a text cut there?`);
  }
}

/** A copy, read once: a getter cannot return something else later. Documents become Maps, which keep any name. */
function checked(given: unknown, path: string, depth: number): unknown {
  if (depth > DEPTH_MAX) {
    throw new TypeError(`${path.slice(0, 100)}…: more than ${String(DEPTH_MAX)} levels, or a document within itself`);
  }
  const value = hasToBson(given) ? given.toBSON() : given;
  switch (typeof value) {
    case "string":
      checkText(value, path);
      return value;
    case "boolean":
    case "number":
      return value;
    case "bigint":
      if (value > INT64_MAX || value < -INT64_MAX - 1n) {
        throw new TypeError(`${path} is ${String(value)}, more than an int64 holds: use a Decimal128`);
      }
      return value;
    case "object":
      return value === null ? null : checkedObject(value, path, depth);
    case "undefined":
      throw new TypeError(
        `${path} is undefined: use null, which in a filter also matches a missing field, or leave it out`,
      );
    default:
      throw new TypeError(`${path} is a ${typeof value}, which BSON does not have`);
  }
}

function checkedObject(value: object, path: string, depth: number): unknown {
  const inner = (found: Iterable<[unknown, unknown]>): Map<unknown, unknown> =>
    new Map(
      Array.from(found, ([name, each]) => {
        checkText(String(name), `${path}.${String(name)}`);
        return [name, checked(each, `${path}.${String(name)}`, depth + 1)];
      }),
    );
  if ("_bsontype" in value) {
    if (value._bsontype === "DBRef") {
      const { collection, oid, db, fields } = value as DBRef;
      return inner(Object.entries({ $ref: collection, $id: oid, ...(db != null && { $db: db }), ...fields }));
    }
    if (value._bsontype === "Code" && (value as Code).scope) {
      checkText((value as Code).code, path);
      return new Code((value as Code).code, checked((value as Code).scope, `${path}.scope`, depth + 1) as Document);
    }
    checkTexts(value, path);
    // `serialize` checks that it is one of its own types.
    return value;
  }
  if (Array.isArray(value)) {
    // Array.from also visits the holes.
    return Array.from(value, (each: unknown, index) => checked(each, `${path}[${String(index)}]`, depth + 1));
  }
  if (types.isMap(value)) {
    return inner(value);
  }
  if (types.isUint8Array(value)) {
    return value;
  }
  if (types.isDate(value)) {
    if (Number.isNaN(value.getTime())) {
      throw new TypeError(`${path} is an invalid Date, which would become 1970`);
    }
    return value;
  }
  if (types.isRegExp(value)) {
    checkText(value.source, path);
    // `serialize` ignores s and y, and writes g as MongoDB's s.
    const lost = /[gsvy]/.exec(value.flags);
    if (lost) {
      throw new TypeError(`${path} has the flag "${lost[0]}": use a BSONRegExp, which has MongoDB's options`);
    }
    return value;
  }
  if (isDocument(value)) {
    return inner(Object.entries(value));
  }
  throw new TypeError(
    `${path} is ${nameOf(value)}, and no document: use a plain object, an array, a Map or a BSON type`,
  );
}

/** Whether an object's own fields are all that it holds: not so in a Set, a Promise, or with private or inherited fields. */
function isDocument(value: object): boolean {
  for (const name in value) {
    if (!Object.hasOwn(value, name) && typeof (value as Document)[name] !== "function") {
      return false;
    }
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  const isPlain = prototype === null || Object.getPrototypeOf(prototype) === null;
  return (
    Object.prototype.toString.call(value) === "[object Object]" &&
    (isPlain || Object.keys(value).length > 0) &&
    !Object.getOwnPropertySymbols(value).some((name) => Object.prototype.propertyIsEnumerable.call(value, name))
  );
}

function nameOf(value: object): string {
  return `an object of ${(value.constructor as { name?: string } | undefined)?.name ?? "no class"}`;
}

function hasToBson(value: unknown): value is { toBSON(): unknown } {
  return typeof (value as { toBSON?: unknown } | null | undefined)?.toBSON === "function";
}
