package dev.feedmux.errors;

import io.grpc.Status;

/** The thread was interrupted while it waited. Its interrupt flag is set again, and the session stays open. */
public class InterruptedCallException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception with this message. */
    public InterruptedCallException(String message) {
        super(Failure.of(Status.Code.CANCELLED, message));
    }
}
