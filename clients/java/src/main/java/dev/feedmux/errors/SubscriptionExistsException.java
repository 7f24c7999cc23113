package dev.feedmux.errors;

/** A subscription of this name with other content exists. */
public class SubscriptionExistsException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public SubscriptionExistsException(Failure failure) {
        super(failure);
    }
}
