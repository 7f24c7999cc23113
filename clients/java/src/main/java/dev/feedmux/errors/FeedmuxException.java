package dev.feedmux.errors;

import io.grpc.Status;
import java.time.Duration;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** Whatever a server, the network or a violated protocol causes. Wrong arguments are {@link IllegalArgumentException}. */
public class FeedmuxException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private final transient Failure failure;

    /** With what is known of it. */
    public FeedmuxException(Failure failure) {
        super((failure.reason().isEmpty() ? failure.status().name() : failure.reason()) + ": " + failure.message());
        this.failure = failure;
    }

    /** The facts. */
    public final Failure failure() {
        return failure;
    }

    /** The gRPC status code. */
    public final Status.Code status() {
        return failure.status();
    }

    /** A name of {@code ErrorReason} without its prefix, such as {@code HISTORY_LOST}; empty where there was none. */
    public final String reason() {
        return failure.reason();
    }

    /** The facts that the reason's documentation names. */
    public final Map<String, String> metadata() {
        return failure.metadata();
    }

    /** How long the server asked to wait; null where it did not. */
    public final @Nullable Duration retryAfter() {
        return failure.retryAfter();
    }
}
