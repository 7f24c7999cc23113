package dev.feedmux;

/** The members of the replica set from which the feed may be read. See MongoDB's read preference modes. */
public enum ReadPreference {
    /** The primary. */
    PRIMARY,
    /** The primary, or a secondary if the primary is unavailable. */
    PRIMARY_PREFERRED,
    /** A secondary. */
    SECONDARY,
    /** A secondary, or the primary if no secondary is available. */
    SECONDARY_PREFERRED,
    /** A member with low latency. */
    NEAREST
}
