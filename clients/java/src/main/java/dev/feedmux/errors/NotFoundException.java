package dev.feedmux.errors;

/** The requested object does not exist. */
public class NotFoundException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public NotFoundException(Failure failure) {
        super(failure);
    }
}
