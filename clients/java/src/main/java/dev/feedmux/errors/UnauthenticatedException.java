package dev.feedmux.errors;

/** No credentials, or none that the server knows. */
public class UnauthenticatedException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public UnauthenticatedException(Failure failure) {
        super(failure);
    }
}
