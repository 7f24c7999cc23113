package dev.feedmux.errors;

/** The request has no credentials, or the server does not know them. */
public class UnauthenticatedException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public UnauthenticatedException(Failure failure) {
        super(failure);
    }
}
