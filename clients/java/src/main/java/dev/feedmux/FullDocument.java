package dev.feedmux;

/** Whether update events carry the document. See MongoDB's option {@code fullDocument}. */
public enum FullDocument {
    /** Update events carry only what changed: MongoDB's {@code default}. */
    DEFAULT,
    /** Update events carry the document as it is when the event is read: {@code updateLookup}. */
    UPDATE_LOOKUP,
    /** Update events carry the stored post-image if there is one: {@code whenAvailable}. */
    WHEN_AVAILABLE,
    /** Update events carry the stored post-image, and the feed ends if there is none: {@code required}. */
    REQUIRED
}
