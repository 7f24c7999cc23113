/**
 * MongoDB change events through a shared, durable feed.
 *
 * <p>{@link dev.feedmux.FeedmuxClient} connects; {@link dev.feedmux.Subscription#open} and
 * {@link dev.feedmux.InlineFeed#open} give a {@link dev.feedmux.Session}, which hands out events and takes acks.
 */
@NullMarked
package dev.feedmux;

import org.jspecify.annotations.NullMarked;
