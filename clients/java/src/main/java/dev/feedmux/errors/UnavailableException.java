package dev.feedmux.errors;

/** The server, or a service that it depends on, cannot be reached now. */
public class UnavailableException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public UnavailableException(Failure failure) {
        super(failure);
    }
}
