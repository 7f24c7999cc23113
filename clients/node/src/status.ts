/** From gRPC's statuses to the client's errors: reads ErrorInfo and RetryInfo out of the trailing metadata. */

import { fromBinary } from "@bufbuild/protobuf";
import type { Any } from "@bufbuild/protobuf/wkt";
import { type Metadata, status as Status, type StatusObject } from "@grpc/grpc-js";

import { type FeedmuxError, makeError } from "./errors.js";
import { ErrorInfoSchema, RetryInfoSchema, StatusSchema } from "./gen/google/rpc/status_pb.js";
import { milliseconds } from "./requests.js";

const DETAILS_KEY = "grpc-status-details-bin";
const DOMAIN = "feedmux";
/**
 * What grpc-js says where the peer has ended the connection for too many pings, for example: it is lost, and no quota of
 * the server's is exceeded.
 */
const CALM = "Bandwidth exhausted or memory limit exceeded";

/** The error for a status that is not OK. Details that cannot be read, or are another domain's, do not count. */
export function errorFromStatus(given: Pick<StatusObject, "code" | "details" | "metadata">): FeedmuxError {
  let reason = "";
  let metadata: Record<string, string> = {};
  let retryAfterMs: number | undefined;
  try {
    for (const detail of details(given.metadata)) {
      if (detail.typeUrl.endsWith("/google.rpc.ErrorInfo")) {
        const info = fromBinary(ErrorInfoSchema, detail.value);
        if (info.domain === DOMAIN) {
          reason = info.reason.replace(/^ERROR_REASON_/, "");
          ({ metadata } = info);
        }
      } else if (detail.typeUrl.endsWith("/google.rpc.RetryInfo")) {
        const { retryDelay } = fromBinary(RetryInfoSchema, detail.value);
        retryAfterMs = retryDelay && Math.max(0, milliseconds(retryDelay));
      }
    }
  } catch {
    // The status itself says enough.
  }
  const isCalm = given.code === Status.RESOURCE_EXHAUSTED && given.details === CALM;
  const name = Status[isCalm ? Status.UNAVAILABLE : given.code] as string | undefined;
  return makeError(name ?? "UNKNOWN", given.details, { reason, metadata, retryAfterMs });
}

function details(metadata: Metadata | undefined): Any[] {
  const [encoded] = metadata?.get(DETAILS_KEY) ?? [];
  return Buffer.isBuffer(encoded) ? fromBinary(StatusSchema, encoded).details : [];
}
