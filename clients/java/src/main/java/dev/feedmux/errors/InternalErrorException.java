package dev.feedmux.errors;

/** A defect of the server. Metadata: {@code correlation_id}. */
public class InternalErrorException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public InternalErrorException(Failure failure) {
        super(failure);
    }
}
