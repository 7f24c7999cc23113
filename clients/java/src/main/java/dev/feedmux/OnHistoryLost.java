package dev.feedmux;

/** What happens when a subscription's position has left MongoDB's oplog. */
public enum OnHistoryLost {
    /** The session ends with {@link dev.feedmux.errors.HistoryLostException}. */
    FAIL,
    /** The session reports {@link Notice.Gap}, then the feed continues from the oldest available event. */
    EARLIEST,
    /**
     * The session reports {@link Notice.Gap}, then the existing documents are copied again: see
     * {@link Notice.SnapshotComplete}.
     */
    SNAPSHOT
}
