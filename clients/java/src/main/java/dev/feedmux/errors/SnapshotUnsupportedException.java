package dev.feedmux.errors;

import io.grpc.Status;

/** The server is older than the start {@code snapshot}, and has begun, or would begin, at the present instead. */
public class SnapshotUnsupportedException extends FeedmuxException {
    private static final long serialVersionUID = 1L;

    /** Creates the exception; {@code what} says what the server did instead. */
    public SnapshotUnsupportedException(String what) {
        super(Failure.of(
                Status.Code.UNIMPLEMENTED,
                "the server does not know the start snapshot, and " + what
                        + ". Upgrade all replicas of the server first"));
    }
}
