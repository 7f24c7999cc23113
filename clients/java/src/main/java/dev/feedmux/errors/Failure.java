package dev.feedmux.errors;

import dev.feedmux.Place;
import io.grpc.Status;
import java.time.Duration;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The facts of an error.
 *
 * @param status the gRPC status code
 * @param reason a name of {@code ErrorReason} without its prefix ({@code HISTORY_LOST}); empty where there was none
 * @param message for people
 * @param metadata the facts that the reason's documentation names
 * @param retryAfter how long the server asked to wait, where it did
 * @param place the last place of the session, where that helps to go on
 */
public record Failure(
        Status.Code status,
        String reason,
        String message,
        Map<String, String> metadata,
        @Nullable Duration retryAfter,
        @Nullable Place place) {

    /** Copies the metadata. */
    public Failure {
        metadata = Map.copyOf(metadata);
    }

    /** A failure without a reason. */
    public static Failure of(Status.Code status, String message) {
        return new Failure(status, "", message, Map.of(), null, null);
    }

    /** The same, with the last place of the session. */
    public Failure at(Place last) {
        return new Failure(status, reason, message, metadata, retryAfter, last);
    }
}
