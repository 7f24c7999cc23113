package dev.feedmux.errors;

/** The request is invalid; {@link #reason()} says how. */
public class InvalidArgumentException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public InvalidArgumentException(Failure failure) {
        super(failure);
    }
}
