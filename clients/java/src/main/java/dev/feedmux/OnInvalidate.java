package dev.feedmux;

/** What happens when a subscription's feed ends with an invalidate event. */
public enum OnInvalidate {
    /** The event is delivered, then the session ends with {@link dev.feedmux.errors.FeedInvalidatedException}. */
    STOP,
    /** The event is delivered, and the feed continues after it. */
    CONTINUE
}
