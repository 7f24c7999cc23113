package dev.feedmux.errors;

/** The server ended the session. */
public class AbortedException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public AbortedException(Failure failure) {
        super(failure);
    }
}
