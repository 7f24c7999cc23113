/** Misspelt values are compile errors: `tsc` fails on a line that it should reject and accepts. Nothing here runs. */

import type { Document } from "bson";

import type * as feedmux from "../src/index.js";

export const feed: feedmux.Feed = {
  fullDocument: "updateLookup",
  fullDocumentBeforeChange: "whenAvailable",
  readPreference: "secondaryPreferred",
};

export const misspelt: feedmux.Feed = {
  // @ts-expect-error MongoDB spells it updateLookup.
  fullDocument: "updatelookup",
  // @ts-expect-error This is a value of fullDocument.
  fullDocumentBeforeChange: "updateLookup",
  // @ts-expect-error MongoDB spells it secondaryPreferred.
  readPreference: "secondary_preferred",
};

export async function policies(subscription: feedmux.Subscription): Promise<void> {
  await subscription.create(feed, { onInvalidate: "continue", onHistoryLost: "earliest", start: "latest" });
  // @ts-expect-error It is stop or continue.
  await subscription.create(feed, { onInvalidate: "go on" });
  // @ts-expect-error It is fail or earliest.
  await subscription.update({ onHistoryLost: "latest" });
  // @ts-expect-error The words are earliest and latest.
  await subscription.seek("newest");
  // @ts-expect-error The formats have the names of Format.
  await subscription.open({ format: "extended_json_relaxed" });
}

export function kinds(notice: feedmux.Notice): Document | undefined {
  // @ts-expect-error The kind is disconnected.
  return notice.kind === "reconnecting" ? notice : undefined;
}
