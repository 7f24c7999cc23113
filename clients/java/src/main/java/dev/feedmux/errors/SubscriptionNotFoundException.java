package dev.feedmux.errors;

/** The subscription does not exist, or it was deleted during the session. */
public class SubscriptionNotFoundException extends NotFoundException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public SubscriptionNotFoundException(Failure failure) {
        super(failure);
    }
}
