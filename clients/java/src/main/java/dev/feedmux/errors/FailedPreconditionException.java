package dev.feedmux.errors;

/** The request does not match the current state; {@link #reason()} says how. */
public class FailedPreconditionException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public FailedPreconditionException(Failure failure) {
        super(failure);
    }
}
