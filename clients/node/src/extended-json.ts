/**
 * Events in MongoDB's Extended JSON, as BSON, and the other way for the stages of a stored feed.
 *
 * bson's `EJSON.parse` takes any object with a name such as `$oid` or `$date` for a value, but a document may have such
 * names itself. Here a value is only what the server writes for its type: exactly its names, and a text of its form. All
 * else is the document that it is.
 */

import { BSONType, Decimal128, deserialize, type Document, EJSON, onDemand } from "bson";

/** The name of a number as its text. It cannot be a document's: names in BSON have no zero. */
const NUMBER = "\0";
/** A name of digits alone begins with that too while it is parsed: JavaScript would put it before all other names. */
const DIGITS = /^\0(?=\d)/;
const INT32_MAX = 2 ** 31 - 1;
const DEPTH_MAX = 1000;

/** A value's type, and its bytes. */
type Value = readonly [type: number, bytes: Buffer];

/** The BSON of a document's text. Throws SyntaxError and RangeError for what is no document. */
export function toBson(text: string): Buffer {
  const parsed: unknown = JSON.parse(withMarks(text));
  if (!isObject(parsed)) {
    throw new RangeError("not a document");
  }
  return documentBytes(Object.entries(parsed), 0);
}

/**
 * The stages of `{pipeline: [stages]}` as text that the server reads, every name in its place. The server rejects the text
 * of what JSON cannot say: a name that appears twice, and values of deprecated types.
 */
export function stagesText(pipeline: Uint8Array): string {
  const [element] = onDemand.parseToElements(pipeline);
  return element === undefined ? "[]" : textOf(pipeline, element[0], element[3], element[4]);
}

function textOf(bytes: Uint8Array, type: number, at: number, size: number): string {
  const value = bytes.subarray(at, at + size);
  switch (type) {
    case BSONType.object:
    case BSONType.array: {
      const isArray = type === BSONType.array;
      const texts = Array.from(onDemand.parseToElements(value), ([kind, nameAt, nameSize, ...place]) => {
        const name = Buffer.from(value.subarray(nameAt, nameAt + nameSize)).toString();
        return (isArray ? "" : `${JSON.stringify(name)}:`) + textOf(value, kind, ...place);
      });
      return isArray ? `[${texts.join()}]` : `{${texts.join()}}`;
    }
    // bson reads these two as other types.
    case BSONType.dbPointer:
      return '{"$dbPointer":{}}';
    case BSONType.undefined:
      return '{"$undefined":true}';
    default: {
      const document = Buffer.concat([int32(7 + size), Buffer.of(type, 0), value, Buffer.of(0)]);
      const { "": decoded } = deserialize(document, { promoteValues: false, bsonRegExp: true });
      return EJSON.stringify(decoded, { relaxed: false });
    }
  }
}

function documentBytes(fields: [string, unknown][], depth: number): Buffer {
  if (depth > DEPTH_MAX) {
    throw new RangeError("too many levels");
  }
  const parts: Buffer[] = [Buffer.alloc(4)];
  for (const [name, each] of fields) {
    const [type, bytes] = valueOf(each, depth);
    parts.push(Buffer.of(type), cText(name.replace(DIGITS, "")), bytes);
  }
  parts.push(Buffer.of(0));
  const document = Buffer.concat(parts);
  document.writeInt32LE(document.length);
  return document;
}

function valueOf(value: unknown, depth: number): Value {
  if (typeof value === "string") {
    return [BSONType.string, textBytes(value)];
  }
  if (typeof value === "boolean") {
    return [BSONType.bool, Buffer.of(Number(value))];
  }
  if (typeof value === "number") {
    return numberValue(value);
  }
  if (Array.isArray(value)) {
    return [BSONType.array, documentBytes(Object.entries(value), depth + 1)];
  }
  if (!isObject(value)) {
    return [BSONType.null, Buffer.alloc(0)];
  }
  return wrapped(value, depth) ?? [BSONType.object, documentBytes(Object.entries(value), depth + 1)];
}

/** The value that an object stands for; undefined if it is a document. */
function wrapped(object: Document, depth: number): Value | undefined {
  const [name, second, ...more] = Object.keys(object);
  if (name === "$code" && second === "$scope" && more.length === 0) {
    const { $code: code, $scope: scope } = object;
    if (typeof code !== "string" || !isObject(scope)) {
      return undefined;
    }
    const parts = [textBytes(code), documentBytes(Object.entries(scope), depth + 1)];
    return [BSONType.javascriptWithScope, Buffer.concat([int32(4 + lengthOf(parts)), ...parts])];
  }
  if (name === undefined || second !== undefined) {
    return undefined;
  }
  const content: unknown = object[name];
  switch (name) {
    case NUMBER:
      return /[.eE]/.test(String(content)) ? double(Number(content)) : int64(BigInt(String(content)));
    case "$oid":
      return objectId(content);
    case "$symbol":
      return typeof content === "string" ? [BSONType.symbol, textBytes(content)] : undefined;
    case "$code":
      return typeof content === "string" ? [BSONType.javascript, textBytes(content)] : undefined;
    case "$numberInt": {
      const value = integer(content);
      return value !== undefined && BigInt.asIntN(32, value) === value ? numberValue(Number(value)) : undefined;
    }
    case "$numberLong": {
      const value = integer(content);
      return value === undefined ? undefined : int64(value);
    }
    case "$numberDouble":
      return isMatch(/^(?:-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|NaN|-?Infinity)$/, content)
        ? double(Number(content))
        : undefined;
    case "$numberDecimal":
      return decimal(content);
    case "$date":
      return date(content);
    case "$binary":
      return binary(content);
    case "$regularExpression":
      return regularExpression(content);
    case "$timestamp":
      return timestamp(content);
    case "$dbPointer":
      return dbPointer(content);
    case "$undefined":
      return content === true ? [BSONType.undefined, Buffer.alloc(0)] : undefined;
    case "$minKey":
      return content === 1 ? [BSONType.minKey & 0xff, Buffer.alloc(0)] : undefined;
    case "$maxKey":
      return content === 1 ? [BSONType.maxKey, Buffer.alloc(0)] : undefined;
  }
  return undefined;
}

function objectId(content: unknown): Value | undefined {
  return isMatch(/^[0-9a-f]{24}$/, content) ? [BSONType.objectId, Buffer.from(content, "hex")] : undefined;
}

function decimal(content: unknown): Value | undefined {
  if (!isMatch(/^(?:-?[0-9][0-9.]{0,40}(?:E[+-][0-9]{1,4})?|NaN|-?Infinity)$/, content)) {
    return undefined;
  }
  try {
    const value = Decimal128.fromString(content);
    return value.toString() === content ? [BSONType.decimal, Buffer.from(value.bytes)] : undefined;
  } catch {
    return undefined;
  }
}

function date(content: unknown): Value | undefined {
  let milliseconds: bigint | undefined;
  if (isMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?Z$/, content)) {
    const time = new Date(content);
    const isExact = time.getTime() % 1 === 0 && time.toISOString().startsWith(content.slice(0, 19));
    milliseconds = isExact ? BigInt(time.getTime()) : undefined;
  } else if (hasNames(content, "$numberLong")) {
    milliseconds = integer(content["$numberLong"]);
  }
  return milliseconds === undefined ? undefined : [BSONType.date, int64(milliseconds)[1]];
}

function binary(content: unknown): Value | undefined {
  if (!hasNames(content, "base64", "subType")) {
    return undefined;
  }
  const { base64, subType } = content;
  const bytes = Buffer.from(String(base64), "base64");
  if (bytes.toString("base64") !== base64 || !isMatch(/^[0-9a-f]{2}$/, subType)) {
    return undefined;
  }
  const type = parseInt(subType, 16);
  const inner = type === 2 ? Buffer.concat([int32(bytes.length), bytes]) : bytes;
  return [BSONType.binData, Buffer.concat([int32(inner.length), Buffer.of(type), inner])];
}

function regularExpression(content: unknown): Value | undefined {
  if (!hasNames(content, "pattern", "options")) {
    return undefined;
  }
  const { pattern, options } = content;
  return isMatch(/^[^\0]*$/, pattern) && isMatch(/^[^\0]*$/, options)
    ? [BSONType.regex, Buffer.concat([cText(pattern), cText(options)])]
    : undefined;
}

function timestamp(content: unknown): Value | undefined {
  if (!hasNames(content, "t", "i") || !isUint32(content["t"]) || !isUint32(content["i"])) {
    return undefined;
  }
  const bytes = Buffer.alloc(8);
  bytes.writeUInt32LE(content["i"]);
  bytes.writeUInt32LE(content["t"], 4);
  return [BSONType.timestamp, bytes];
}

function dbPointer(content: unknown): Value | undefined {
  if (!hasNames(content, "$ref", "$id") || typeof content["$ref"] !== "string" || !hasNames(content["$id"], "$oid")) {
    return undefined;
  }
  const id = objectId(content["$id"]["$oid"]);
  return id && [BSONType.dbPointer, Buffer.concat([textBytes(content["$ref"]), id[1]])];
}

function numberValue(value: number): Value {
  if (!Number.isInteger(value) || Object.is(value, -0)) {
    return double(value);
  }
  return value >= -INT32_MAX - 1 && value <= INT32_MAX ? [BSONType.int, int32(value)] : int64(BigInt(value));
}

function double(value: number): Value {
  const bytes = Buffer.alloc(8);
  bytes.writeDoubleLE(value);
  return [BSONType.double, bytes];
}

function int64(value: bigint): Value {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64LE(value);
  return [BSONType.long, bytes];
}

function int32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32LE(value);
  return bytes;
}

function textBytes(text: string): Buffer {
  const bytes = Buffer.from(text);
  return Buffer.concat([int32(bytes.length + 1), bytes, Buffer.of(0)]);
}

function cText(text: string): Buffer {
  if (text.includes("\0")) {
    throw new RangeError("a name has a zero");
  }
  return Buffer.from(`${text}\0`);
}

/** An int64; undefined if the text is none. */
function integer(text: unknown): bigint | undefined {
  const value = isMatch(/^(?:0|-?[1-9]\d{0,18})$/, text) ? BigInt(text) : undefined;
  return value !== undefined && BigInt.asIntN(64, value) === value ? value : undefined;
}

function isMatch(pattern: RegExp, text: unknown): text is string {
  return typeof text === "string" && pattern.test(text);
}

function isUint32(value: unknown): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= 0 && value < 2 ** 32;
}

function isObject(value: unknown): value is Document {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Whether a value is an object with exactly these names, in this order. */
function hasNames(value: unknown, ...names: string[]): value is Document {
  if (!isObject(value)) {
    return false;
  }
  const found = Object.keys(value);
  return found.length === names.length && found.every((name, index) => name === names[index]);
}

function lengthOf(parts: readonly Buffer[]): number {
  return parts.reduce((sum, part) => sum + part.length, 0);
}

/**
 * Relaxed Extended JSON writes an int64 as a bare number, which JSON.parse would round, and a double that is whole as
 * `1.0` or `1e+20`, which would become an integer. Such a number becomes an object with its text. A name that would lose
 * its place gets a mark.
 */
function withMarks(text: string): string {
  if (!/\d{16}|\.0[,\]}\s]|\d[eE][+-]\d|\d"\s*:/.test(text)) {
    return text;
  }
  return text.replace(/"(?:[^"\\]|\\.)*"(?:\s*:)?|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g, (token) => {
    if (/^"\d+"\s*:$/.test(token)) {
      return `"\\u0000${token.slice(1)}`;
    }
    if (token.startsWith('"') || !Number.isInteger(Number(token)) || !/[.eE]|\d{16}/.test(token)) {
      return token;
    }
    return `{"\\u0000":"${token}"}`;
  });
}
