package dev.feedmux.errors;

/** Another client holds the subscription; opening with {@code takeover(true)} replaces it. Metadata: {@code owner}. */
public class SubscriptionBusyException extends FailedPreconditionException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception from the details of the error. */
    public SubscriptionBusyException(Failure failure) {
        super(failure);
    }
}
