package dev.feedmux.errors;

import io.grpc.Status;

/** The thread was interrupted while it waited; its interrupt flag is set again. The session stays as it is. */
public class InterruptedCallException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what it waited for. */
    public InterruptedCallException(String message) {
        super(Failure.of(Status.Code.CANCELLED, message));
    }
}
