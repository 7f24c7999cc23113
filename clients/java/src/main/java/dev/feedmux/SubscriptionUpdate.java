package dev.feedmux;

import org.jspecify.annotations.Nullable;

/**
 * The changes to a subscription. A component that is null stays the same, and so does the position.
 *
 * @param feed the new feed; its source, database and collection cannot be changed
 * @param onInvalidate the new policy for invalidate events
 * @param onHistoryLost the new policy for lost history
 * @param etag the etag of the definition to change: the update fails if another client has changed the definition
 *     since; empty means no such check
 */
public record SubscriptionUpdate(
        @Nullable Feed feed,
        @Nullable OnInvalidate onInvalidate,
        @Nullable OnHistoryLost onHistoryLost,
        String etag) {

    /** Returns an update without changes. */
    public static SubscriptionUpdate nothing() {
        return new SubscriptionUpdate(null, null, null, "");
    }

    /** Returns this update with another feed. */
    public SubscriptionUpdate withFeed(Feed other) {
        return new SubscriptionUpdate(other, onInvalidate, onHistoryLost, etag);
    }

    /** Returns this update with another policy. */
    public SubscriptionUpdate withOnInvalidate(OnInvalidate other) {
        return new SubscriptionUpdate(feed, other, onHistoryLost, etag);
    }

    /** Returns this update with another policy. */
    public SubscriptionUpdate withOnHistoryLost(OnHistoryLost other) {
        return new SubscriptionUpdate(feed, onInvalidate, other, etag);
    }

    /** Returns this update with an etag to check. */
    public SubscriptionUpdate withEtag(String other) {
        return new SubscriptionUpdate(feed, onInvalidate, onHistoryLost, other);
    }
}
