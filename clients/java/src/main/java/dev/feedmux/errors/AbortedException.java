package dev.feedmux.errors;

/** The server ended the session. */
public class AbortedException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public AbortedException(Failure failure) {
        super(failure);
    }
}
