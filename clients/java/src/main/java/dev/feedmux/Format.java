package dev.feedmux;

/** How events are written on the wire. */
public enum Format {
    /** The bytes MongoDB sent. The fast path. */
    BSON,
    /** MongoDB's relaxed extended JSON. */
    EXTENDED_JSON_RELAXED,
    /** MongoDB's canonical extended JSON. */
    EXTENDED_JSON_CANONICAL
}
