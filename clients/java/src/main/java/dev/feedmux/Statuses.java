package dev.feedmux;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.feedmux.errors.Errors;
import dev.feedmux.errors.Failure;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.InterruptedCallException;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** Converts gRPC statuses to the client's errors, with ErrorInfo and RetryInfo from the trailers. */
final class Statuses {
    private static final Metadata.Key<byte[]> DETAILS =
            Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);
    private static final String DOMAIN = "feedmux";
    private static final String PREFIX = "ERROR_REASON_";
    /**
     * What gRPC says where the peer has ended the connection for too many pings, for example: it is lost, and no quota
     * of the server's is exceeded.
     */
    private static final String CALM = "HTTP/2 error code: ENHANCE_YOUR_CALM";

    private static final int CAUSES_MAX = 100;

    private Statuses() {}

    /** Returns the error of a failed call. */
    static FeedmuxException error(StatusRuntimeException failed) {
        if (failed.getCause() instanceof InterruptedException) {
            return caused(new InterruptedCallException("interrupted during a call"), failed);
        }
        return error(failed.getStatus(), failed.getTrailers(), failed);
    }

    /** Returns the error for a status that is not OK. Ignores details that are unreadable or of another domain. */
    static FeedmuxException error(Status status, @Nullable Metadata trailers) {
        return error(status, trailers, status.getCause());
    }

    private static FeedmuxException error(Status given, @Nullable Metadata trailers, @Nullable Throwable cause) {
        boolean isCalm = given.getCode() == Status.Code.RESOURCE_EXHAUSTED
                && given.getDescription() != null
                && given.getDescription().contains(CALM);
        Status status = isCalm
                ? Status.UNAVAILABLE.withDescription(given.getDescription()).withCause(given.getCause())
                : given;
        String reason = "";
        Map<String, String> metadata = Map.of();
        Duration retryAfter = null;
        try {
            for (Any detail : details(trailers)) {
                if (detail.is(ErrorInfo.class)) {
                    ErrorInfo info = detail.unpack(ErrorInfo.class);
                    if (info.getDomain().equals(DOMAIN)) {
                        reason = info.getReason().startsWith(PREFIX)
                                ? info.getReason().substring(PREFIX.length())
                                : info.getReason();
                        metadata = info.getMetadataMap();
                    }
                } else if (detail.is(RetryInfo.class)) {
                    Duration asked =
                            Messages.duration(detail.unpack(RetryInfo.class).getRetryDelay());
                    retryAfter = asked.isNegative() ? Duration.ZERO : asked;
                }
            }
        } catch (InvalidProtocolBufferException unreadable) {
            return caused(Errors.of(Failure.of(status.getCode(), message(status))), unreadable);
        }
        FeedmuxException error =
                Errors.of(new Failure(status.getCode(), reason, message(status), metadata, retryAfter, null));
        return cause == null ? error : caused(error, cause);
    }

    private static List<Any> details(@Nullable Metadata trailers) throws InvalidProtocolBufferException {
        byte[] bytes = trailers == null ? null : trailers.get(DETAILS);
        return bytes == null
                ? List.of()
                : com.google.rpc.Status.parseFrom(bytes).getDetailsList();
    }

    /** Returns the server's text, or gRPC's text with its cause, because "io exception" alone does not help. */
    private static String message(Status status) {
        String description = status.getDescription() == null ? "" : status.getDescription();
        Throwable cause = status.getCause() == null ? null : lastCause(status.getCause());
        return cause == null || cause.getMessage() == null
                ? description
                : (description.lines().findFirst().orElse("") + ": " + cause.getMessage());
    }

    static Throwable lastCause(Throwable error) {
        Throwable last = error;
        // Causes may form a circle, so that there is no last one.
        for (int depth = 0; last.getCause() != null && depth < CAUSES_MAX; depth++) {
            last = last.getCause();
        }
        return last;
    }

    private static FeedmuxException caused(FeedmuxException error, Throwable cause) {
        error.initCause(cause);
        return error;
    }
}
