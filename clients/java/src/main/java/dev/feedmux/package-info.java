/**
 * MongoDB change events through a shared, durable feed.
 *
 * <p>{@link dev.feedmux.FeedmuxClient} connects; {@link dev.feedmux.Subscription#open} and
 * {@link dev.feedmux.InlineFeed#open} return a {@link dev.feedmux.Session}, which delivers events and accepts acks.
 */
@NullMarked
package dev.feedmux;

import org.jspecify.annotations.NullMarked;
