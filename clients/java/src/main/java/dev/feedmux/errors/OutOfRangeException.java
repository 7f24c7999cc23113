package dev.feedmux.errors;

/** The position cannot be read; {@link #reason()} says why. */
public class OutOfRangeException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public OutOfRangeException(Failure failure) {
        super(failure);
    }
}
