package dev.feedmux.errors;

/** The request is wrong in itself; {@link #reason()} says how. */
public class InvalidArgumentException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public InvalidArgumentException(Failure failure) {
        super(failure);
    }
}
