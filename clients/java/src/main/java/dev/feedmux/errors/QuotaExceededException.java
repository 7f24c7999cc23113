package dev.feedmux.errors;

/** A quota of the tenant or a limit of the server is reached. */
public class QuotaExceededException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public QuotaExceededException(Failure failure) {
        super(failure);
    }
}
