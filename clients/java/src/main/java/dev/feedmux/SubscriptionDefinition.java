package dev.feedmux;

/**
 * The definition of a new subscription.
 *
 * @param feed the feed that it reads
 * @param start the position at which it begins
 * @param onInvalidate what happens at an invalidate event
 * @param onHistoryLost what happens when its position has left the oplog
 */
public record SubscriptionDefinition(Feed feed, Start start, OnInvalidate onInvalidate, OnHistoryLost onHistoryLost) {

    /** Returns a definition that begins now, stops at an invalidate event, and fails when history is lost. */
    public static SubscriptionDefinition of(Feed feed) {
        return new SubscriptionDefinition(feed, Start.latest(), OnInvalidate.STOP, OnHistoryLost.FAIL);
    }

    /** Returns this definition with another start. */
    public SubscriptionDefinition from(Start other) {
        return new SubscriptionDefinition(feed, other, onInvalidate, onHistoryLost);
    }

    /** Returns this definition with another policy. */
    public SubscriptionDefinition withOnInvalidate(OnInvalidate other) {
        return new SubscriptionDefinition(feed, start, other, onHistoryLost);
    }

    /** Returns this definition with another policy. */
    public SubscriptionDefinition withOnHistoryLost(OnHistoryLost other) {
        return new SubscriptionDefinition(feed, start, onInvalidate, other);
    }
}
