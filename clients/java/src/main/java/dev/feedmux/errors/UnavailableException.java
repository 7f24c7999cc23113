package dev.feedmux.errors;

/** The server, or what it depends on, cannot be reached now. */
public class UnavailableException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public UnavailableException(Failure failure) {
        super(failure);
    }
}
