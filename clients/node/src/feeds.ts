/** What to watch and where to begin, as the user says it, and what the server says of it. `requests` knows the wire. */

import type { Document, Timestamp } from "bson";

import type { SnapshotStatus } from "./notices.js";

/** Whether update events carry the document, as MongoDB's option says it. */
export type FullDocument = "default" | "updateLookup" | "whenAvailable" | "required";

/** Whether events carry the document as it was before the change. */
export type FullDocumentBeforeChange = "off" | "whenAvailable" | "required";

/** The members of the replica set that the feed may be read from. */
export type ReadPreference = "primary" | "primaryPreferred" | "secondary" | "secondaryPreferred" | "nearest";

/**
 * A feed: scope, pipeline and MongoDB's change stream options. Without `collection`, it covers the whole database;
 * without `database`, the whole deployment; both are left out then, and not `undefined`. An option left out is not sent
 * to MongoDB.
 */
export interface Feed {
  readonly database?: string;
  readonly collection?: string;
  /** Stages, or a JSON array of them as text, which the server parses (docs/pipelines.md). */
  readonly pipeline?: readonly Document[] | string | undefined;
  readonly fullDocument?: FullDocument | undefined;
  readonly fullDocumentBeforeChange?: FullDocumentBeforeChange | undefined;
  readonly showExpandedEvents?: boolean | undefined;
  readonly collation?: Document | undefined;
  readonly comment?: unknown;
  /** Limits the number of events in one batch; 0: as many as fit. */
  readonly batchSize?: number | undefined;
  readonly maxAwaitTimeMs?: number | undefined;
  readonly readPreference?: ReadPreference | undefined;
  /** For change streams, MongoDB accepts `majority` alone. */
  readonly readConcern?: string | undefined;
  readonly matchCollectionUuidForUpdateLookup?: boolean | undefined;
  /** Options of newer MongoDB versions that are true, by MongoDB's names: `showCommitTimestamp`, for example. */
  readonly extraOptions?: readonly string[] | undefined;
  /** Name of the MongoDB deployment in the server's configuration; by default the client's. */
  readonly source?: string | undefined;
}

/** Where a session begins. */
export type Start =
  /** As far back as MongoDB's oplog reaches. */
  | "earliest"
  /** From now. */
  | "latest"
  /**
   * With the documents that exist, as insert events; every change after them follows.
   */
  | "snapshot"
  /** After a position that feedmux returned. */
  | { readonly position: Uint8Array }
  /** MongoDB's resumeAfter. */
  | { readonly resumeAfter: Document }
  /** MongoDB's startAfter: it also accepts the token of an invalidate event. */
  | { readonly startAfter: Document }
  /** The first event at or after a cluster time. */
  | { readonly operationTime: Timestamp }
  /** The first event at or after a wall-clock time, cut to the whole second. */
  | { readonly time: Date };

/** What happens when the feed ends with an invalidate event: the session ends, or the feed continues after it. */
export type OnInvalidate = "stop" | "continue";

/**
 * What happens when the stored position is no longer in the oplog: the session ends, or a gap notice comes and the feed
 * continues from the oldest available event, or copies the existing documents again (see `SnapshotComplete`).
 */
export type OnHistoryLost = "fail" | "earliest" | "snapshot";

/** A durable subscription as the server stores it. */
export interface SubscriptionInfo {
  readonly name: string;
  /** Can be sent again. Its pipeline is text where objects would lose the order of names such as "10" and "9". */
  readonly feed: Feed;
  readonly onInvalidate: OnInvalidate;
  readonly onHistoryLost: OnHistoryLost;
  /** The stored position: everything at or before it has been processed. */
  readonly position: Buffer;
  readonly clusterTime: Timestamp | undefined;
  readonly createTime: Date | undefined;
  readonly updateTime: Date | undefined;
  /** Changes with the definition. */
  readonly etag: string;
  /** Whether a session is open; `owner` is the instance that opened it. */
  readonly active: boolean;
  readonly owner: string;
  /** Of the newest session. */
  readonly epoch: bigint;
  /** Set while the stored position is within a copy of existing documents. */
  readonly snapshot: SnapshotStatus | undefined;
}

/** A position to be stored, its cluster time, and the same as wall-clock time by the second. */
export interface ResolvedPosition {
  readonly position: Buffer;
  readonly clusterTime: Timestamp | undefined;
  readonly time: Date | undefined;
}

/** What opening a feed would do. */
export interface Explanation {
  /** Undefined if the feed would be opened. */
  readonly refusal: Refusal | undefined;
  /** The pipeline for MongoDB, in extended JSON, without the stages of the tenant's grants. */
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
  /** Whether the feed's collection does not exist now, or its database has no collections; false where unknown. */
  readonly scopeMissing: boolean;
  /** With a start at `snapshot`: about how many documents the copy would read; 0 where unknown. */
  readonly documentsEstimated: number;
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

/** Something that the server does not deliver. */
export interface Withheld {
  readonly what: string;
  readonly why: string;
}
