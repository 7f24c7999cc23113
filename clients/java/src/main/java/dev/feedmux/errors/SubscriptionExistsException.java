package dev.feedmux.errors;

/** A subscription with this name exists with another definition. */
public class SubscriptionExistsException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public SubscriptionExistsException(Failure failure) {
        super(failure);
    }
}
