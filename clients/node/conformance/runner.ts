/** Commands on standard input, replies on standard output: see tests/conformance/clients/README.md. */

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

import { deserialize, type Document, EJSON, serialize, Timestamp } from "bson";

import * as feedmux from "../src/index.js";

type Json = Record<string, unknown>;
type Times = readonly [number, number];

/** Cannot be done by this runner. */
class BadCommand extends Error {}

/** The caller cancelled. */
class Cancelled extends Error {}

/** A session, and what it handed out. */
class SessionRecord {
  readonly abort = new AbortController();
  readonly events: feedmux.ChangeEvent[] = [];
  /** Events and notices since the last `take`. */
  items: Json[] = [];
  session: feedmux.Session | undefined;
  /** Ends a `take` that waits for a notice of this kind. */
  onNotice: (kind: unknown) => void = () => undefined;

  hear(notice: feedmux.Notice): void {
    const told = noticeJson(notice);
    this.items.push({ notice: told });
    this.onNotice(told["kind"]);
  }
}

interface Commands {
  new: {
    target: string;
    api_key?: string | null;
    tokens?: (string | null)[] | null;
    tls?: {
      root?: string | null;
      certificate?: string | null;
      key?: string | null;
      server_name?: string | null;
    } | null;
    source?: string;
    timeout_s?: number;
  };
  open: {
    session: string;
    subscription?: string | null;
    feed?: Json | null;
    start?: string | Json | null;
    takeover?: boolean;
    options?: Json | null;
  };
  ask: {
    subscription: string;
    feed: Json;
    start?: string | Json | null;
    on_history_lost?: feedmux.OnHistoryLost | null;
  };
  take: {
    session: string;
    count?: number | null;
    until_notice?: string | null;
    timeout_s?: number | null;
    report?: string[];
  };
}

const records = new Map<string, SessionRecord>();
let client: feedmux.Client | undefined;

const commands: Record<string, (message: never) => Promise<Json>> = {
  hello: () => Promise.resolve({ client: "node", version: feedmux.VERSION, runner: 1 }),

  new: async ({ target, api_key, tokens, tls, source, timeout_s }: Commands["new"]) => {
    await reset();
    const left = [...(tokens ?? [])];
    client = new feedmux.Client(target, {
      apiKey: api_key ?? undefined,
      token: left.length > 0 ? () => present(left.length > 1 ? left.shift() : left[0]) : undefined,
      tls: tls
        ? { ca: pem(tls.root), cert: pem(tls.certificate), key: pem(tls.key), serverName: tls.server_name ?? undefined }
        : undefined,
      source,
      timeoutMs: timeout_s === undefined ? undefined : timeout_s * 1000,
    });
    return {};
  },

  open: async ({ session, subscription, feed, start, takeover, options }: Commands["open"]) => {
    const client = connected();
    const record = new SessionRecord();
    records.set(session, record);
    const chosen: feedmux.OpenOptions = {
      ...optionsOf(options ?? {}),
      signal: record.abort.signal,
      onNotice: (notice) => {
        record.hear(notice);
      },
    };
    record.session =
      typeof subscription === "string"
        ? await client.subscription(subscription).open({ ...chosen, takeover: takeover ?? false })
        : await client.feed(feedOf(feed ?? {})).open({ ...chosen, start: startOf(start) });
    return {};
  },

  create: async ({ subscription, feed, start, on_history_lost }: Commands["ask"]) =>
    copied(
      await connected()
        .subscription(subscription)
        .create(feedOf(feed), { start: startOf(start) ?? "latest", onHistoryLost: on_history_lost ?? "fail" }),
    ),

  seek: async ({ subscription, start }: Commands["ask"]) =>
    copied(
      await connected()
        .subscription(subscription)
        .seek(startOf(start) ?? "latest"),
    ),

  resolve: async ({ feed, start }: Commands["ask"]) => {
    const { position } = await connected()
      .feed(feedOf(feed))
      .resolve(startOf(start) ?? "latest");
    return { position: position.toString("base64") };
  },

  take: async ({ session, count, until_notice, timeout_s, report = ["document"] }: Commands["take"]) => {
    const [record, open] = opened(session);
    const enough = new AbortController();
    const timeout =
      typeof timeout_s === "number" ? AbortSignal.timeout(timeout_s * 1000) : new AbortController().signal;
    const signal = AbortSignal.any([enough.signal, timeout]);
    record.onNotice = (kind) => {
      if (kind === until_notice) {
        enough.abort();
      }
    };
    const result: Json = { outcome: "enough" };
    if (record.items.some((item) => (item["notice"] as Json)["kind"] === until_notice)) {
      enough.abort();
    }
    try {
      for (let taken = 0; taken < (count ?? Infinity) && !enough.signal.aborted; taken++) {
        const event = await open.next({ signal });
        if (event === undefined) {
          result["outcome"] = "closed";
          break;
        }
        record.events.push(event);
        record.items.push({ event: eventJson(event, report) });
      }
    } catch (error) {
      if (error instanceof feedmux.FeedmuxError) {
        result["outcome"] = "error";
        result["error"] = errorJson(error);
      } else if (error instanceof Cancelled) {
        result["outcome"] = "cancelled";
      } else if (timeout.aborted) {
        result["outcome"] = "timeout";
      } else if (!enough.signal.aborted) {
        throw error;
      }
    }
    record.onNotice = () => undefined;
    result["items"] = record.items;
    record.items = [];
    return result;
  },

  ack: ({ session, event }: { session: string; event?: number | null }) => {
    const [record, open] = opened(session);
    const what = typeof event === "number" ? record.events[event - 1] : undefined;
    open.ack(...(what === undefined ? ([] as const) : ([what] as const)));
    return Promise.resolve({});
  },

  state: ({ session }: { session: string }) => {
    const [, open] = opened(session);
    const { resumeToken, clusterTime } = open;
    return Promise.resolve({
      position: open.position.toString("base64"),
      resume_token: tokenJson(resumeToken),
      cluster_time: clusterTime ? timeJson(clusterTime) : null,
      committed: open.committed.toString("base64"),
      epoch: Number(open.epoch),
      closed: open.closed,
      copying: open.copying !== undefined,
      generation: open.copying?.generation ?? null,
    });
  },

  close: async ({ session, timeout_s }: { session: string; timeout_s?: number | null }) => {
    const [, open] = opened(session);
    await open.close(typeof timeout_s === "number" ? { timeoutMs: timeout_s * 1000 } : {});
    return {};
  },

  cancel: ({ session }: { session: string }) => {
    records.get(session)?.abort.abort(new Cancelled());
    return Promise.resolve({});
  },

  close_client: async () => {
    await client?.close();
    return {};
  },

  reset,
};

function present(token: string | null | undefined): string {
  if (token == null) {
    throw new Error("no token now");
  }
  return token;
}

async function reset(): Promise<Json> {
  for (const record of records.values()) {
    record.abort.abort(new Cancelled());
  }
  records.clear();
  await client?.close();
  client = undefined;
  return {};
}

function connected(): feedmux.Client {
  if (!client) {
    throw new BadCommand("no client");
  }
  return client;
}

function copied({ snapshot }: feedmux.SubscriptionInfo): Json {
  return { copied: snapshot?.documents ?? null };
}

function opened(name: string): [SessionRecord, feedmux.Session] {
  const record = records.get(name);
  if (!record?.session) {
    throw new BadCommand(`no session ${name}`);
  }
  return [record, record.session];
}

function pem(path: string | null | undefined): Buffer | undefined {
  return typeof path === "string" ? readFileSync(path) : undefined;
}

/** `window_events` as `windowEvents`, `heartbeat_s` as `heartbeatMs`. */
function optionsOf(options: Json): feedmux.SomeSessionOptions {
  const entries = Object.entries(options).map(([name, value]) => {
    if (name.endsWith("_s")) {
      return [camel(name.slice(0, -2)) + "Ms", value === null ? Infinity : Number(value) * 1000];
    }
    return [camel(name), name === "format" ? camel(String(value)) : value];
  });
  return Object.fromEntries(entries) as feedmux.SomeSessionOptions;
}

function feedOf({ pipeline, ...feed }: Json): feedmux.Feed {
  const entries = Object.entries(feed).flatMap(([name, value]) => (value === null ? [] : [[camel(name), value]]));
  return {
    ...(Object.fromEntries(entries) as feedmux.Feed),
    pipeline: pipeline ? JSON.stringify(pipeline) : undefined,
  };
}

function camel(name: string): string {
  return name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
}

function startOf(start: string | Json | null | undefined): feedmux.Start | undefined {
  if (start === null || start === undefined) {
    return undefined;
  }
  if (start === "earliest" || start === "latest" || start === "snapshot") {
    return start;
  }
  const [[kind, value] = []] = Object.entries(start);
  switch (kind) {
    case "position":
      return { position: base64(value) };
    case "resume_after":
      return { resumeAfter: deserialize(base64(value)) };
    case "start_after":
      return { startAfter: deserialize(base64(value)) };
    case "operation_time": {
      const [t, i] = value as Times;
      return { operationTime: new Timestamp({ t, i }) };
    }
    case "time":
      return { time: new Date(String(value)) };
    default:
      throw new BadCommand(`no start ${String(kind)}`);
  }
}

function base64(value: unknown): Buffer {
  return Buffer.from(String(value), "base64");
}

function eventJson(event: feedmux.ChangeEvent, report: string[]): Json {
  return {
    ...(report.includes("document") && { document: EJSON.serialize(event.document, { relaxed: false }) }),
    ...(report.includes("snapshot") && { snapshot: event.snapshot }),
    ...(report.includes("generation") && { generation: event.batch.generation }),
    ...(report.includes("raw") && { raw: event.raw.toString("base64") }),
    ...(report.includes("token") && { token: tokenJson(event.resumeToken) }),
  };
}

function tokenJson(token: Document | undefined): string | null {
  return token ? Buffer.from(serialize(token)).toString("base64") : null;
}

function timeJson(time: Timestamp): Times {
  return [time.t, time.i];
}

function noticeJson(notice: feedmux.Notice): Json {
  switch (notice.kind) {
    case "draining":
      return {
        kind: "draining",
        deadline_s: notice.deadlineMs / 1000,
        position: notice.position.toString("base64"),
      };
    case "rewound":
      return { kind: "rewound", from: timeJson(notice.beginsAt), to: timeJson(notice.hadReached) };
    case "skipped":
      return {
        kind: "skipped",
        from: timeJson(notice.hadReached),
        to: timeJson(notice.beginsAt),
        from_position: notice.hadReachedPosition.toString("base64"),
        to_position: notice.beginsAtPosition.toString("base64"),
      };
    case "historyAtRisk":
      return { kind: "history_at_risk", remaining_s: notice.remainingMs / 1000 };
    case "gap":
      return { kind: "gap", from: timeJson(notice.after), to: timeJson(notice.before), reason: notice.reason };
    case "degraded":
    case "unacknowledged":
      return { ...notice };
    case "snapshotProgress": {
      const { documents, bytes, documentsEstimated, remainingMs, readTime, namespace } = notice;
      return {
        kind: "snapshot_progress",
        documents,
        bytes,
        documents_estimated: documentsEstimated,
        remaining_s: remainingMs === undefined ? null : remainingMs / 1000,
        read_time: readTime ? timeJson(readTime) : null,
        namespace,
      };
    }
    case "snapshotComplete": {
      const { documents, bytes, readTime, generation } = notice;
      const read_time = readTime ? timeJson(readTime) : null;
      return { kind: "snapshot_complete", documents, bytes, read_time, generation };
    }
    case "disconnected": {
      const { reason, status } = notice.error;
      return { kind: "disconnected", reason, status, retry_in_s: notice.retryInMs / 1000 };
    }
  }
}

/** `FencedError` is `Fenced`; three types keep the word. */
function typeName({ name }: Error): string {
  if (name === "SessionClosedError") {
    return "Cancelled";
  }
  return ["FeedmuxError", "InternalError", "ProtocolError"].includes(name) ? name : name.replace(/Error$/, "");
}

function errorJson(error: unknown): Json {
  if (error instanceof feedmux.FeedmuxError) {
    return {
      type: typeName(error),
      reason: error.reason,
      status: error.status,
      message: error.details,
      metadata: error.metadata,
      retry_after_s: error.retryAfterMs === undefined ? null : error.retryAfterMs / 1000,
      ...(error instanceof feedmux.FeedInvalidatedError && {
        position: error.position.toString("base64"),
        resume_token: tokenJson(error.resumeToken),
      }),
    };
  }
  const type = error instanceof Cancelled ? "Cancelled" : "BadCommand";
  return { type, message: error instanceof Error ? (error.stack ?? error.message) : String(error) };
}

async function answer(line: string): Promise<void> {
  const { id, do: name, ...fields } = JSON.parse(line) as Json & { id: number; do: string };
  let reply: Json;
  try {
    const command = Object.hasOwn(commands, name) ? commands[name] : undefined;
    if (!command) {
      throw new BadCommand(`no command ${name}`);
    }
    reply = { ok: await command(fields as never) };
  } catch (error) {
    reply = { error: errorJson(error) };
  }
  process.stdout.write(JSON.stringify({ id, ...reply }) + "\n");
}

const lines = createInterface({ input: process.stdin, crlfDelay: Infinity });
lines.on("line", (line) => void answer(line));
lines.on("close", () => void reset());
