package dev.feedmux.errors;

/** Another client holds the subscription; opening with {@code takeover(true)} replaces it. Metadata: {@code owner}. */
public class SubscriptionBusyException extends FailedPreconditionException {
    private static final long serialVersionUID = 1L;

    /** With what is known of it. */
    public SubscriptionBusyException(Failure failure) {
        super(failure);
    }
}
