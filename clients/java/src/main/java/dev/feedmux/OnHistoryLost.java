package dev.feedmux;

/** What happens when a subscription's position has left MongoDB's oplog. */
public enum OnHistoryLost {
    /** The session ends with {@link dev.feedmux.errors.HistoryLostException}. */
    FAIL,
    /** {@link Notice.Gap}, then the feed goes on from the oldest event there is. */
    EARLIEST
}
