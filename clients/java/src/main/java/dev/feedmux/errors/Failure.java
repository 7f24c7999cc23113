package dev.feedmux.errors;

import dev.feedmux.FeedPosition;
import io.grpc.Status;
import java.time.Duration;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The details of an error.
 *
 * @param status the gRPC status code
 * @param reason a name of {@code ErrorReason} without its prefix ({@code HISTORY_LOST}); empty if there is none
 * @param message the text for people
 * @param metadata the details that the documentation of the reason lists
 * @param retryAfter how long the server asked the client to wait; null if it did not
 * @param feedPosition the last position of the session, if it helps to resume; else null
 */
public record Failure(
        Status.Code status,
        String reason,
        String message,
        Map<String, String> metadata,
        @Nullable Duration retryAfter,
        @Nullable FeedPosition feedPosition) {

    /** Copies the metadata. */
    public Failure {
        metadata = Map.copyOf(metadata);
    }

    /** Returns a failure without a reason. */
    public static Failure of(Status.Code status, String message) {
        return new Failure(status, "", message, Map.of(), null, null);
    }

    /** Returns this failure with the last position of the session. */
    public Failure at(FeedPosition last) {
        return new Failure(status, reason, message, metadata, retryAfter, last);
    }
}
