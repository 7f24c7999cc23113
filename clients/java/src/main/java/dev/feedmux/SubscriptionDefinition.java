package dev.feedmux;

/**
 * What a subscription is to be.
 *
 * @param feed what it reads
 * @param start where it begins
 * @param onInvalidate what happens at an invalidate event
 * @param onHistoryLost what happens when its position has left the oplog
 */
public record SubscriptionDefinition(Feed feed, Start start, OnInvalidate onInvalidate, OnHistoryLost onHistoryLost) {

    /** A subscription of this feed from now, which stops at an invalidate event and fails when history is lost. */
    public static SubscriptionDefinition of(Feed feed) {
        return new SubscriptionDefinition(feed, Start.latest(), OnInvalidate.STOP, OnHistoryLost.FAIL);
    }

    /** Beginning elsewhere. */
    public SubscriptionDefinition from(Start other) {
        return new SubscriptionDefinition(feed, other, onInvalidate, onHistoryLost);
    }

    /** With another policy. */
    public SubscriptionDefinition withOnInvalidate(OnInvalidate other) {
        return new SubscriptionDefinition(feed, start, other, onHistoryLost);
    }

    /** With another policy. */
    public SubscriptionDefinition withOnHistoryLost(OnHistoryLost other) {
        return new SubscriptionDefinition(feed, start, onInvalidate, other);
    }
}
