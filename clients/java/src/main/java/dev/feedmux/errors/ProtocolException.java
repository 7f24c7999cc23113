package dev.feedmux.errors;

import io.grpc.Status;

/**
 * The server broke the protocol: a gap in the sequence, more events than the credit allows, a message over the limit,
 * fragments out of order, lengths that do not add up, or an undecodable message.
 */
public class ProtocolException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception with a description of the violation. */
    public ProtocolException(String message) {
        super(Failure.of(Status.Code.INTERNAL, message));
    }
}
