package dev.feedmux;

/** Whether events carry the document before the change. See MongoDB's option {@code fullDocumentBeforeChange}. */
public enum FullDocumentBeforeChange {
    /** Events carry no pre-image: MongoDB's {@code off}. */
    OFF,
    /** Events carry the stored pre-image if there is one: {@code whenAvailable}. */
    WHEN_AVAILABLE,
    /** Events carry the stored pre-image, and the feed ends if there is none: {@code required}. */
    REQUIRED
}
