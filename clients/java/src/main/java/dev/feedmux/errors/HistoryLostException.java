package dev.feedmux.errors;

/** The position has left MongoDB's oplog. Metadata: {@code oldest_time}, if it is known. */
public class HistoryLostException extends OutOfRangeException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public HistoryLostException(Failure failure) {
        super(failure);
    }
}
