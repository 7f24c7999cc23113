package dev.feedmux.errors;

/** There is no such subscription, or it was deleted during the session. */
public class SubscriptionNotFoundException extends NotFoundException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public SubscriptionNotFoundException(Failure failure) {
        super(failure);
    }
}
