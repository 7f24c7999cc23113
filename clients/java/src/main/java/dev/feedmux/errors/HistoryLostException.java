package dev.feedmux.errors;

/** The position has left MongoDB's oplog. Metadata: {@code oldest_time} where it is known. */
public class HistoryLostException extends OutOfRangeException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public HistoryLostException(Failure failure) {
        super(failure);
    }
}
