package dev.feedmux;

/** The format of events on the wire. */
public enum Format {
    /** BSON, as MongoDB sent it. The fastest format. */
    BSON,
    /** MongoDB's relaxed extended JSON. */
    EXTENDED_JSON_RELAXED,
    /** MongoDB's canonical extended JSON. */
    EXTENDED_JSON_CANONICAL
}
