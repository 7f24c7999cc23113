package dev.feedmux.errors;

import io.grpc.Status;

/**
 * The server broke the protocol: a gap in the sequence, more than the credit, a message over the limit, fragments out
 * of order, lengths that do not add up, or an undecodable message.
 */
public class ProtocolException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** With what was broken. */
    public ProtocolException(String message) {
        super(Failure.of(Status.Code.INTERNAL, message));
    }
}
