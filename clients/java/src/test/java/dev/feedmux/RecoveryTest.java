package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.feedmux.errors.Errors;
import dev.feedmux.errors.Failure;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.ProtocolException;
import dev.feedmux.v1.ErrorReason;
import io.grpc.Status;
import java.time.Duration;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

final class RecoveryTest {
    @ParameterizedTest
    @CsvSource(nullValues = "-", textBlock = """
            UNAVAILABLE,         -,                      -,        -, Unavailable,          REOPEN
            UNAVAILABLE,         DRAINING,               -,        1, Unavailable,          REOPEN
            UNAVAILABLE,         SOURCE_UNAVAILABLE,     -,        1, Unavailable,          REOPEN
            DEADLINE_EXCEEDED,   -,                      -,        -, Unavailable,          REOPEN
            INTERNAL,            -,                      -,        -, InternalError,        REOPEN
            INTERNAL,            INTERNAL,               -,        -, InternalError,        RAISE
            UNKNOWN,             -,                      -,        -, Feedmux,              REOPEN
            CANCELLED,           -,                      -,        -, Feedmux,              REOPEN
            UNIMPLEMENTED,       -,                      -,        -, Feedmux,              RAISE
            RESOURCE_EXHAUSTED,  QUOTA_EXCEEDED,         -,        2, QuotaExceeded,        REOPEN
            RESOURCE_EXHAUSTED,  QUOTA_EXCEEDED,         -,        -, QuotaExceeded,        RAISE
            ABORTED,             FENCED,                 SEEK,     -, Fenced,               REOPEN_AT_STORED
            ABORTED,             FENCED,                 UPDATE,   -, Fenced,               REOPEN
            ABORTED,             FENCED,                 LEASE,    -, Fenced,               REOPEN
            ABORTED,             FENCED,                 TAKEOVER, -, Fenced,               RAISE
            ABORTED,             FENCED,                 DELETE,   -, SubscriptionNotFound, RAISE
            ABORTED,             FENCED,                 -,        -, Fenced,               RAISE
            ABORTED,             GRANTS_CHANGED,         -,        -, Aborted,              REOPEN
            ABORTED,             ENDED_BY_OPERATOR,      -,        -, EndedByOperator,      RAISE
            OUT_OF_RANGE,        HISTORY_LOST,           -,        -, HistoryLost,          RAISE
            OUT_OF_RANGE,        TIMELINE_FORKED,        -,        -, TimelineForked,       RAISE
            OUT_OF_RANGE,        EVENT_TOO_LARGE,        -,        -, OutOfRange,           RAISE
            FAILED_PRECONDITION, FEED_INVALIDATED,       -,        -, FeedInvalidated,      RAISE
            FAILED_PRECONDITION, SUBSCRIPTION_BUSY,      -,        -, SubscriptionBusy,     RAISE
            FAILED_PRECONDITION, PIPELINE_FAILED,        -,        -, FailedPrecondition,   RAISE
            NOT_FOUND,           SUBSCRIPTION_NOT_FOUND, -,        -, SubscriptionNotFound, RAISE
            NOT_FOUND,           SOURCE_NOT_FOUND,       -,        -, NotFound,             RAISE
            ALREADY_EXISTS,      SUBSCRIPTION_EXISTS,    -,        -, SubscriptionExists,   RAISE
            INVALID_ARGUMENT,    POSITION_FOREIGN,       -,        -, PositionInvalid,      RAISE
            INVALID_ARGUMENT,    OPTION_REFUSED,         -,        -, OptionRefused,        RAISE
            INVALID_ARGUMENT,    A_REASON_TO_COME,       -,        -, InvalidArgument,      RAISE
            UNAUTHENTICATED,     UNAUTHENTICATED,        -,        -, Unauthenticated,      RAISE
            PERMISSION_DENIED,   NAMESPACE_DENIED,       -,        -, PermissionDenied,     RAISE
            """)
    void eachErrorHasItsTypeAndItsStep(
            Status.Code status, String reason, String cause, Integer retryAfter, String type, Recovery.Step step) {
        Map<String, String> metadata = cause == null ? Map.of() : Map.of("cause", cause);
        Duration wait = retryAfter == null ? null : Duration.ofSeconds(retryAfter);
        FeedmuxException error =
                Errors.of(new Failure(status, reason == null ? "" : reason, "said", metadata, wait, null));
        assertEquals(type + "Exception", error.getClass().getSimpleName());
        assertSame(step, Recovery.nextStep(error, false));
        assertTrue(error.getMessage().endsWith(": said"));
    }

    @Test
    void aConnectionThatThePeerEndsForItsPingsIsLost() {
        String said =
                "Connection closed after GOAWAY. HTTP/2 error code: ENHANCE_YOUR_CALM (Bandwidth exhausted), debug"
                        + " data: too_many_pings";
        FeedmuxException error = Statuses.error(Status.RESOURCE_EXHAUSTED.withDescription(said), null);
        assertEquals("UNAVAILABLE: " + said, error.getMessage());
        assertEquals(Recovery.Step.REOPEN, Recovery.nextStep(error, false));
    }

    @Test
    void aTokenThatCanBeRenewedIsAskedForAgain() {
        FeedmuxException refused = Errors.of(Failure.of(Status.Code.UNAUTHENTICATED, "said"));
        assertSame(Recovery.Step.REOPEN, Recovery.nextStep(refused, true));
        assertSame(Recovery.Step.RAISE, Recovery.nextStep(new ProtocolException("gap"), true));
    }

    @Test
    void everyReasonOfTheProtocolGivesAnError() {
        for (ErrorReason reason : ErrorReason.values()) {
            String name = reason.name().replace("ERROR_REASON_", "");
            FeedmuxException error = Errors.of(new Failure(Status.Code.ABORTED, name, "said", Map.of(), null, null));
            assertEquals(name, error.reason());
        }
    }

    @Test
    void backoffDoublesUpToABoundAndAddsWhatTheServerAsks() {
        Backoff backoff = new Backoff(Duration.ofMillis(100), Duration.ofMillis(350), () -> 0.5);
        assertEquals(Duration.ofMillis(50), backoff.next(null));
        assertEquals(Duration.ofMillis(100), backoff.next(null));
        assertEquals(Duration.ofMillis(2175), backoff.next(Duration.ofSeconds(2)));
        backoff.reset();
        assertEquals(Duration.ofMillis(50), backoff.next(null));
    }

    @Test
    void aStreamThatWasOpenForLongerThanTheLargestBoundResetsTheBackoff() {
        Backoff backoff = new Backoff(Duration.ofMillis(100), Duration.ofMillis(350), () -> 0.5);
        backoff.next(null);
        backoff.lived(Duration.ofMillis(350));
        assertEquals(Duration.ofMillis(100), backoff.next(null));
        backoff.lived(Duration.ofMillis(351));
        assertEquals(Duration.ofMillis(50), backoff.next(null));
    }
}
