package dev.feedmux.errors;

/** The request does not fit the present state; {@link #reason()} says how. */
public class FailedPreconditionException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public FailedPreconditionException(Failure failure) {
        super(failure);
    }
}
