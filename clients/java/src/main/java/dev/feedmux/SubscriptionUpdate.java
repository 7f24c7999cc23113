package dev.feedmux;

import org.jspecify.annotations.Nullable;

/**
 * What to change of a subscription; what is null stays. The position stays in any case.
 *
 * @param feed its source, database and collection cannot be changed
 * @param onInvalidate the policy
 * @param onHistoryLost the policy
 * @param etag of the definition that this changes: another's update in between makes this one fail; empty is no guard
 */
public record SubscriptionUpdate(
        @Nullable Feed feed,
        @Nullable OnInvalidate onInvalidate,
        @Nullable OnHistoryLost onHistoryLost,
        String etag) {

    /** Nothing yet. */
    public static SubscriptionUpdate nothing() {
        return new SubscriptionUpdate(null, null, null, "");
    }

    /** With another feed. */
    public SubscriptionUpdate withFeed(Feed other) {
        return new SubscriptionUpdate(other, onInvalidate, onHistoryLost, etag);
    }

    /** With another policy. */
    public SubscriptionUpdate withOnInvalidate(OnInvalidate other) {
        return new SubscriptionUpdate(feed, other, onHistoryLost, etag);
    }

    /** With another policy. */
    public SubscriptionUpdate withOnHistoryLost(OnHistoryLost other) {
        return new SubscriptionUpdate(feed, onInvalidate, other, etag);
    }

    /** Guarded by an etag. */
    public SubscriptionUpdate withEtag(String other) {
        return new SubscriptionUpdate(feed, onInvalidate, onHistoryLost, other);
    }
}
