package dev.feedmux.errors;

import io.grpc.Status;
import java.time.Duration;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * An error caused by the server, the network or a protocol violation. Invalid arguments cause an
 * {@link IllegalArgumentException}.
 */
public class FeedmuxException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private final transient Failure failure;

    /** Creates the exception from the details of the error. */
    public FeedmuxException(Failure failure) {
        super((failure.reason().isEmpty() ? failure.status().name() : failure.reason()) + ": " + failure.message());
        this.failure = failure;
    }

    /** Returns the details of the error. */
    public final Failure failure() {
        return failure;
    }

    /** Returns the gRPC status code. */
    public final Status.Code status() {
        return failure.status();
    }

    /**
     * Returns a name of {@code ErrorReason} without its prefix, such as {@code HISTORY_LOST}; empty if there is none.
     */
    public final String reason() {
        return failure.reason();
    }

    /** Returns the details that the documentation of the reason lists. */
    public final Map<String, String> metadata() {
        return failure.metadata();
    }

    /** Returns how long the server asked the client to wait; null if it did not. */
    public final @Nullable Duration retryAfter() {
        return failure.retryAfter();
    }
}
