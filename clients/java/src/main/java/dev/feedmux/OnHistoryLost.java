package dev.feedmux;

/** What happens when a subscription's position has left MongoDB's oplog. */
public enum OnHistoryLost {
    /** The session ends with {@link dev.feedmux.errors.HistoryLostException}. */
    FAIL,
    /** The session reports {@link Notice.Gap}, then the feed continues from the oldest available event. */
    EARLIEST
}
