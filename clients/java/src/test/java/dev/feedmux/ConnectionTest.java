package dev.feedmux;

import static dev.feedmux.support.ScriptedServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.UnavailableException;
import dev.feedmux.support.ScriptedServer;
import dev.feedmux.support.ScriptedServer.Call;
import dev.feedmux.support.ScriptedServer.Script;
import dev.feedmux.support.VirtualTime;
import dev.feedmux.support.Wire;
import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Tests how a session behaves over time, in virtual time. */
@Timeout(120)
final class ConnectionTest {
    private static final SessionOptions OPTIONS = SessionOptions.defaults().toBuilder()
            .backoff(Duration.ZERO, Duration.ZERO)
            .openTimeout(Duration.ofSeconds(2))
            .ackInterval(Duration.ZERO)
            .reconnectTimeout(Duration.ofSeconds(3))
            .onNotice(notice -> {})
            .build();

    private final VirtualTime time = new VirtualTime();
    private SessionOptions options = OPTIONS;
    private final SessionBuffer buffer = new SessionBuffer(notice -> {});
    private final List<AutoCloseable> open = new ArrayList<>();
    private ScriptedServer server;
    private Connection connection;

    @AfterEach
    void close() throws Exception {
        Collections.reverse(open);
        for (AutoCloseable each : open) {
            each.close();
        }
    }

    @Test
    void anAttemptInProgressIsCutWhenTheTimeToOpenIsOver() throws Exception {
        start(Credentials.none(), Call::awaitClose);
        until(() -> server.call(0) != null);
        time.advance(Duration.ofMillis(1999));
        assertFalse(connection.opened().isDone());
        time.advance(Duration.ofMillis(1));
        FeedmuxException error =
                assertInstanceOf(UnavailableException.class, connection.opened().get());
        assertEquals(Status.Code.DEADLINE_EXCEEDED, error.status());
        assertEquals(
                "the server did not open the session within 2 s",
                error.failure().message());
        until(server.call(0)::isGone);
    }

    @Test
    void theLastErrorSaysWhyOpeningFailed() throws Exception {
        start(Credentials.none(), ConnectionTest::unavailable, Call::awaitClose);
        untilCalled(1);
        time.advance(Duration.ofSeconds(2));
        assertEquals("STATE_UNAVAILABLE", connection.opened().get().reason());
    }

    @Test
    void aTokenFunctionThatHangsDoesNotHoldUpTheTimeout() throws Exception {
        CountDownLatch never = new CountDownLatch(1);
        CountDownLatch asked = new CountDownLatch(1);
        Credentials hanging = Credentials.renewed(() -> {
            asked.countDown();
            try {
                never.await();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
            return "token";
        });
        start(hanging, Call::awaitClose);
        asked.await();
        time.advance(Duration.ofSeconds(2));
        assertEquals(Status.Code.DEADLINE_EXCEEDED, connection.opened().get().status());
        never.countDown();
    }

    @Test
    void theTimeToOpenDoesNotEndAnOpenSession() throws Exception {
        start(Credentials.none(), call -> {
            call.send(Wire.opened());
            call.send(Wire.batch(1, 1, 1));
            call.await(it -> it.acked() == 1);
            call.send(Wire.batch(2, 2, 1));
            call.awaitClose();
        });
        connection.opened().get();
        buffer.next(-1, false, false);
        time.advance(Duration.ofSeconds(10));
        buffer.ack(1);
        until(() -> {
            time.advance(Duration.ZERO);
            return server.call(0).acked() == 1;
        });
        assertEquals(
                2, assertInstanceOf(Event.class, buffer.next(-1, false, false)).sequence());
    }

    @Test
    void theTimeToReconnectBoundsAnAttempt() throws Exception {
        start(
                Credentials.none(),
                call -> {
                    call.send(Wire.opened());
                    unavailable(call);
                },
                Call::awaitClose);
        untilCalled(1);
        time.advance(Duration.ofSeconds(3));
        FeedmuxException error = assertThrows(FeedmuxException.class, () -> buffer.next(-1, false, false));
        assertEquals("STATE_UNAVAILABLE", error.reason());
    }

    @Test
    void aSilentStreamIsLeftAndAStoppedProcessLeavesNone() throws Exception {
        AtomicInteger dialed = new AtomicInteger();
        Script silent = call -> {
            call.send(Wire.opened(), Wire.batch(1, 1, 1));
            call.awaitClose();
        };
        start(dialed, Credentials.none(), silent);
        buffer.next(-1, false, false);
        time.stopFor(Duration.ofHours(1));
        time.advance(Duration.ofSeconds(27));
        assertEquals(1, dialed.get());
        until(() -> {
            time.advance(dialed.get() == 1 ? Duration.ofSeconds(1) : Duration.ZERO);
            return server.call(1) != null;
        });
        assertEquals(2, dialed.get());
    }

    /** Without Progress, like a busy feed. */
    @Test
    void aStreamThatHeldResetsTheBackoff() throws Exception {
        options = OPTIONS.toBuilder()
                .backoff(Duration.ofNanos(1), Duration.ofNanos(8))
                .build();
        Semaphore next = new Semaphore(0);
        AtomicInteger streams = new AtomicInteger();
        Script breaks = call -> {
            next.acquire();
            call.send(Wire.openedAt(0, streams.incrementAndGet()), Wire.batch(1, 1, 1));
            next.acquire();
            unavailable(call);
        };
        start(Credentials.none(), breaks);
        List<Long> retries = new ArrayList<>();
        for (long heldNanos : new long[] {0, 8, 8, 9}) {
            int number = retries.size();
            until(() -> {
                time.advance(Duration.ofNanos(1));
                return server.call(number) != null;
            });
            next.release();
            if (number == 0) {
                buffer.next(-1, false, false);
            }
            until(() -> buffer.epoch() == number + 1);
            time.advance(Duration.ofNanos(heldNanos));
            next.release();
            retries.add(assertInstanceOf(Notice.Disconnected.class, buffer.next(-1, true, false))
                    .retryIn()
                    .toNanos());
        }
        assertEquals(List.of(0L, 1L, 2L, 0L), retries, "half of 1, 2, 4, and of 1 again");
    }

    private static void unavailable(Call call) {
        throw ScriptedServer.status(Status.Code.UNAVAILABLE, "STATE_UNAVAILABLE", Map.of());
    }

    private void untilCalled(int number) {
        until(() -> {
            time.advance(Duration.ZERO);
            return server.call(number) != null;
        });
    }

    private void start(Credentials credentials, Script... scripts) {
        start(new AtomicInteger(), credentials, scripts);
    }

    private void start(AtomicInteger dialed, Credentials credentials, Script... scripts) {
        server = new ScriptedServer(scripts);
        open.add(server);
        Transport transport = new Transport(server.target(), null, credentials, Duration.ofSeconds(30), channel -> {
            dialed.incrementAndGet();
            return channel;
        });
        open.add(transport);
        connection = new Connection(
                transport, new Opening("s", null, null, "i"), options, buffer, time, time::nanoTime, () -> 0.5);
        open.add(connection::abandon);
        connection.start();
    }
}
