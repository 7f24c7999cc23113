package dev.feedmux.errors;

import io.grpc.Status;

/** The session was used after it was closed. */
public class SessionClosedException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception with this message. */
    public SessionClosedException(String message) {
        super(Failure.of(Status.Code.CANCELLED, message));
    }
}
