package dev.feedmux.errors;

/**
 * MongoDB was restored from an older copy, or replaced, and does not have the history of the position: seek to another
 * one. Metadata: {@code last_common_time}, up to which the two histories are equal, if it is known.
 */
public class TimelineForkedException extends OutOfRangeException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public TimelineForkedException(Failure failure) {
        super(failure);
    }
}
