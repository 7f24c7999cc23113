/**
 * feedmux: MongoDB change events through a shared, durable feed.
 *
 *     const client = new Client("localhost:7117", { apiKey: "…" });
 *     await using session = await client.subscription("orders-to-search").open();
 *     for await (const event of session) {
 *       await index(event.document);
 *       session.ack(event);
 *     }
 *
 * What is named here is the interface; other modules may change.
 */

export { Batch, BsonBatch, ChangeEvent, JsonBatch } from "./batches.js";
export {
  Client,
  type ClientOptions,
  type CreateOptions,
  type DeleteOptions,
  type ExplainOptions,
  type FeedOpenOptions,
  InlineFeed,
  type ListOptions,
  type OpenOptions,
  Subscription,
  type SubscriptionChange,
  type SubscriptionOpenOptions,
} from "./client.js";
export * from "./errors.js";
export type * from "./feeds.js";
export type { CallOptions, Tls } from "./transport.js";
export type * from "./notices.js";
export type { Format, SessionOptions, SomeSessionOptions } from "./options.js";
export { FeedPosition } from "./positions.js";
export { type CloseOptions, type OnNotice, Session, type WaitOptions } from "./session.js";
export type { Token } from "./token.js";
export { VERSION } from "./version.js";
