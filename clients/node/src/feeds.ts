/** What to watch and where to begin, as the user says it, and what the server says of it. `requests` knows the wire. */

import type { Document, Timestamp } from "bson";

/**
 * A feed: scope, pipeline and MongoDB's change stream options. No `collection` is the whole database, no `database` the
 * whole deployment. An option left out is not sent to MongoDB.
 */
export interface Feed {
  readonly database?: string | undefined;
  readonly collection?: string | undefined;
  /** Stages, or the same as an extended JSON array. */
  readonly pipeline?: readonly Document[] | string | undefined;
  /** `default`, `updateLookup`, `whenAvailable`, `required`. */
  readonly fullDocument?: string | undefined;
  /** `off`, `whenAvailable`, `required`. */
  readonly fullDocumentBeforeChange?: string | undefined;
  readonly showExpandedEvents?: boolean | undefined;
  readonly collation?: Document | undefined;
  readonly comment?: unknown;
  /** Events of one batch at most; 0: as many as fit. */
  readonly batchSize?: number | undefined;
  readonly maxAwaitTimeMs?: number | undefined;
  readonly readPreference?: string | undefined;
  readonly readConcern?: string | undefined;
  readonly matchCollectionUuidForUpdateLookup?: boolean | undefined;
  /** Name of the MongoDB deployment in the server's configuration; by default the client's. */
  readonly source?: string | undefined;
}

/** Where to begin. */
export type Start =
  /** As far back as MongoDB's oplog reaches. */
  | "earliest"
  /** From now. */
  | "latest"
  /** Behind a position that feedmux gave out. */
  | { readonly position: Uint8Array }
  /** MongoDB's resumeAfter. */
  | { readonly resumeAfter: Document }
  /** MongoDB's startAfter: also behind an invalidate event. */
  | { readonly startAfter: Document }
  /** The first event at or after a cluster time. */
  | { readonly operationTime: Timestamp }
  /** The first event at or after a wall-clock time, by the whole second. */
  | { readonly time: Date };

/** What happens when the feed ends with an invalidate event: the session ends, or the feed goes on behind it. */
export type OnInvalidate = "stop" | "continue";

/** What happens when the stored position has left the oplog: the session ends, or goes on from the oldest event after a gap notice. */
export type OnHistoryLost = "fail" | "earliest";

/** A durable subscription as the server has it. */
export interface SubscriptionInfo {
  readonly name: string;
  readonly feed: Feed;
  readonly onInvalidate: OnInvalidate;
  readonly onHistoryLost: OnHistoryLost;
  /** Stored: everything at or before it is processed. */
  readonly position: Buffer;
  readonly clusterTime: Timestamp | undefined;
  readonly createTime: Date | undefined;
  readonly updateTime: Date | undefined;
  /** Changes with the definition. */
  readonly etag: string;
  /** Whether a session is open, and whose (its instance id). */
  readonly active: boolean;
  readonly owner: string;
  /** Of the newest session. */
  readonly epoch: bigint;
}

/** A position to be stored, its cluster time, and the same as wall-clock time by the second. */
export interface ResolvedPosition {
  readonly position: Buffer;
  readonly clusterTime: Timestamp | undefined;
  readonly time: Date | undefined;
}

/** What opening a feed would do, without doing it. */
export interface Explanation {
  /** How opening would end; undefined: it would be opened. */
  readonly refusal: Refusal | undefined;
  /** What MongoDB is asked, in extended JSON; the stages of the tenant's grants are not shown. */
  readonly pipeline: string;
  readonly streamKey: string;
  /** Whether the server reads that stream already. */
  readonly streamOpen: boolean;
  readonly images: readonly CollectionImages[];
  /** From the oldest entry of the oplog to the start; undefined where it is not known. */
  readonly oplogHeadroomMs: number | undefined;
  readonly withheld: readonly Withheld[];
  /** Whether it may be served from one stream that reads its database or the deployment for many feeds. */
  readonly mayBeView: boolean;
}

/** How opening would end. */
export interface Refusal {
  readonly status: string;
  readonly reason: string;
  readonly message: string;
}

/** A collection whose stored pre- and post-images are needed, for the tenant's grants or only for the feed. */
export interface CollectionImages {
  readonly database: string;
  readonly collection: string;
  readonly enabled: boolean;
  readonly forGrants: boolean;
}

/** Something that does not come. */
export interface Withheld {
  readonly what: string;
  readonly why: string;
}
