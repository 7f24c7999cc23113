package dev.feedmux.errors;

/** A quota of the tenant or a limit of the server has been reached. */
public class QuotaExceededException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public QuotaExceededException(Failure failure) {
        super(failure);
    }
}
