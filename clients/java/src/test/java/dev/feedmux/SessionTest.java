package dev.feedmux;

import static dev.feedmux.support.ScriptedServer.until;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.feedmux.errors.FeedInvalidatedException;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.HistoryLostException;
import dev.feedmux.errors.InterruptedCallException;
import dev.feedmux.errors.SessionClosedException;
import dev.feedmux.errors.UnavailableException;
import dev.feedmux.support.ScriptedServer;
import dev.feedmux.support.ScriptedServer.Call;
import dev.feedmux.support.ScriptedServer.Script;
import dev.feedmux.support.Wire;
import dev.feedmux.v1.Committed;
import dev.feedmux.v1.SubscribeResponse;
import io.grpc.Context;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.logging.Logger;
import java.util.logging.SimpleFormatter;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** Tests the behaviour of the session's interface that the conformance scenarios do not cover. */
@Timeout(120)
final class SessionTest {
    private static final SessionOptions QUICK = SessionOptions.defaults().toBuilder()
            .backoff(Duration.ofMillis(10), Duration.ofMillis(50))
            .ackInterval(Duration.ofMillis(20))
            .closeTimeout(Duration.ofSeconds(5))
            .build();

    private final List<AutoCloseable> open = new ArrayList<>();
    private ScriptedServer server;

    @AfterEach
    void close() throws Exception {
        Collections.reverse(open);
        for (AutoCloseable each : open) {
            each.close();
        }
    }

    @Test
    void iteratesAcksAndCloses() {
        Session session = opened(play(Wire.opened(), Wire.batch(1, 1, 2), Wire.batch(3, 3, 1)));
        List<Integer> seen = new ArrayList<>();
        for (Event event : session) {
            seen.add(event.document().getInteger("n"));
            session.ack(event);
            if (seen.size() == 3) {
                break;
            }
        }
        assertEquals(List.of(1, 2, 3), seen);
        assertTrue(session.poll(Duration.ZERO).isEmpty());
        assertTrue(session.poll(Duration.ofMillis(10)).isEmpty());
        session.close();
        session.close();
        assertEquals(3, server.call(0).acked());
        assertTrue(session.isClosed());
        assertFalse(session.iterator().hasNext());
        assertThrows(NoSuchElementException.class, () -> session.iterator().next());
        assertThrows(SessionClosedException.class, session::take);
    }

    @Test
    void aReconnectIsOneLineOfTheLog() {
        List<String> lines = Collections.synchronizedList(new ArrayList<>());
        Logger log = Logger.getLogger("dev.feedmux");
        log.setFilter(line -> lines.add(new SimpleFormatter().formatMessage(line)));
        open.add(() -> log.setFilter(null));
        Session session = opened(
                call -> {
                    call.send(Wire.opened(), Wire.batch(1, 1, 1));
                    throw ScriptedServer.status(Status.Code.UNAVAILABLE, "STATE_UNAVAILABLE", Map.of());
                },
                play(Wire.openedAt(0, 1), Wire.batch(1, 1, 2)));
        session.take();
        session.take();
        assertEquals(1, lines.size(), lines::toString);
        assertTrue(lines.get(0).matches("disconnected, reconnecting in \\d+ ms: STATE_UNAVAILABLE: .*"), lines.get(0));
    }

    @Test
    void aCloseSaysOnceThatAcksWereNotConfirmed() {
        List<String> lines = Collections.synchronizedList(new ArrayList<>());
        Logger log = Logger.getLogger("dev.feedmux");
        log.setFilter(line -> lines.add(line.getMessage()));
        open.add(() -> log.setFilter(null));
        Session confirmed = opened(call -> {
            call.send(Wire.opened(), Wire.batch(1, 1, 1));
            call.awaitClose();
            call.send(SubscribeResponse.newBuilder()
                    .setCommitted(Committed.newBuilder().setDeliverySequence(1))
                    .build());
        });
        confirmed.ack(confirmed.take());
        confirmed.close();
        assertEquals(List.of(), lines);

        Session ended = opened(call -> {
            call.send(Wire.opened(), Wire.batch(1, 1, 1));
            throw ScriptedServer.status(Status.Code.FAILED_PRECONDITION, "FEED_INVALIDATED", Map.of());
        });
        Event event = ended.take();
        assertThrows(FeedInvalidatedException.class, ended::take);
        ended.ack(event);
        ended.close();
        ended.close();
        Session unanswered = opened(play(Wire.opened(), Wire.batch(1, 1, 1)));
        unanswered.ack(unanswered.take());
        unanswered.close();
        assertEquals(2, lines.size(), lines::toString);
        assertTrue(lines.get(0).contains("before the server confirmed all acks"), lines.get(0));
    }

    @Test
    void acksInTheOpenOfAClosingSessionAreConfirmed() {
        List<String> lines = Collections.synchronizedList(new ArrayList<>());
        Logger log = Logger.getLogger("dev.feedmux");
        log.setFilter(line -> lines.add(line.getMessage()));
        open.add(() -> log.setFilter(null));
        Session session = openedWith(
                options -> options.backoff(Duration.ofHours(1), Duration.ofHours(1)),
                call -> {
                    call.send(Wire.opened(), Wire.batch(1, 1, 3));
                    throw Status.UNAVAILABLE.asRuntimeException();
                },
                play(Wire.openedAt(2, 2)));
        session.take();
        Event second = session.take();
        session.take();
        assertInstanceOf(
                Notice.Disconnected.class,
                session.pollItem(Duration.ofMinutes(1)).orElseThrow());
        session.ack(second);
        session.close();
        assertTrue(server.call(1).open().getLastAcked().hasResumeToken());
        assertEquals(List.of(), lines);
    }

    @Test
    void acksOfWhatTheSessionWasMovedPastNeedNoConfirmation() {
        List<String> lines = Collections.synchronizedList(new ArrayList<>());
        Logger log = Logger.getLogger("dev.feedmux");
        log.setFilter(line -> lines.add(line.getMessage()));
        open.add(() -> log.setFilter(null));
        for (StatusRuntimeException ending : List.of(
                ScriptedServer.status(Status.Code.ABORTED, "FENCED", Map.of("cause", "SEEK")),
                Status.UNAVAILABLE.asRuntimeException())) {
            CountDownLatch taken = new CountDownLatch(1);
            Session session = openedWith(
                    options -> options.onNotice(notice -> {}),
                    call -> {
                        call.send(Wire.opened(), Wire.batch(1, 1, 2));
                        taken.await();
                        throw ending;
                    },
                    call -> {
                        call.send(Wire.openedAt(5, 2), Wire.progress(7));
                        call.awaitClose();
                    });
            session.take();
            Event last = session.take();
            taken.countDown();
            until(() -> session.position().equals(Position.of(Wire.position(7))));
            session.ack(last);
            session.close();
        }
        assertEquals(List.of(), lines);
    }

    @Test
    void eventsBatchesAndPlacesAreOneSequence() {
        Session session = opened(play(Wire.opened(), Wire.batch(1, 1, 5), Wire.batch(6, 6, 2), Wire.progress(9)));
        assertEquals(Position.of(Wire.position(0)), session.position());
        assertEquals(1, session.take().sequence());
        assertEquals(2, session.iterator().next().sequence());
        assertEquals(Wire.token(2).toBsonDocument(), session.resumeToken());
        assertEquals(Position.of(Wire.position(0)), session.position());
        Iterator<Batch> batches = session.batches().iterator();
        Batch rest = batches.next();
        assertEquals(List.of(3L, 5L), List.of(rest.firstSequence(), rest.lastSequence()));
        assertEquals(Position.of(Wire.position(5)), session.position());
        session.ack(rest);
        session.ack(batches.next());
        until(() -> session.position().equals(Position.of(Wire.position(9))));
        until(() -> server.call(0).acked() == 7);
    }

    @Test
    void aTokenThatTheServerOmitsIsThatOfTheEvent() {
        SubscribeResponse.Builder batch = Wire.batch(1, 1, 2).toBuilder();
        batch.getBatchBuilder().clearResumeToken();
        Session session = opened(play(Wire.opened(), batch.build()));
        session.take();
        assertEquals(Wire.token(1).toBsonDocument(), session.resumeToken());
        session.take();
        assertEquals(Wire.token(2).toBsonDocument(), session.resumeToken());
        assertEquals(Position.of(Wire.position(2)), session.position());
    }

    @Test
    void batchesWithinALoopOverEventsTakeTheRestOfTheBatch() {
        Session session = opened(play(Wire.opened(), Wire.batch(1, 1, 4), Wire.batch(5, 5, 2), Wire.batch(7, 7, 2)));
        List<Long> seen = new ArrayList<>();
        for (Event event : session) {
            seen.add(event.sequence());
            if (seen.size() == 2 || seen.size() == 5) {
                Batch batch = session.batches().iterator().next();
                batch.forEach(each -> seen.add(each.sequence()));
            }
            if (seen.size() == 8) {
                break;
            }
        }
        assertEquals(LongStream.rangeClosed(1, 8).boxed().toList(), seen);
    }

    @Test
    void eventsCanBeTakenWithinTheListenerOfNotices() {
        List<Long> seen = new ArrayList<>();
        List<Session> itself = new ArrayList<>();
        Session session = openedWith(
                options ->
                        options.onNotice(notice -> seen.add(itself.get(0).take().sequence())),
                play(
                        Wire.opened(),
                        Wire.batch(1, 1, 1),
                        Wire.draining(5),
                        Wire.batch(2, 2, 2),
                        Wire.draining(5),
                        Wire.batch(4, 4, 3)));
        itself.add(session);
        seen.add(session.take().sequence());
        seen.add(session.take().sequence());
        for (Event event : session) {
            seen.add(event.sequence());
            if (seen.size() == 6) {
                break;
            }
        }
        assertEquals(LongStream.rangeClosed(1, 6).boxed().toList(), seen);
    }

    @Test
    void whatIsLookedForIsNotTaken() {
        Session session = opened(play(Wire.opened(), Wire.batch(1, 1, 2), Wire.batch(3, 3, 2)));
        session.take();
        assertTrue(session.iterator().hasNext());
        session.ackAll();
        until(() -> server.call(0).acked() == 1);
        assertEquals(2, session.iterator().next().sequence());
        assertTrue(session.iterator().hasNext());
        assertTrue(session.items().iterator().hasNext());
        assertTrue(session.batches().iterator().hasNext());
        session.ackAll();
        until(() -> server.call(0).acked() == 2);
        assertEquals(3, session.batches().iterator().next().firstSequence());
    }

    @Test
    void whatWasFoundIsHandedOutAlsoWhereTheSessionIsClosedInBetween() {
        Session session = opened(play(Wire.opened(), Wire.batch(1, 1, 2), Wire.batch(3, 3, 2)));
        Iterator<Event> events = session.iterator();
        Iterator<Item> items = session.items().iterator();
        Iterator<Batch> batches = session.batches().iterator();
        assertTrue(events.hasNext() && items.hasNext() && batches.hasNext());
        session.close();
        assertEquals(1, events.next().sequence());
        assertEquals(2, ((Event) items.next()).sequence());
        assertFalse(events.hasNext());
        assertThrows(NoSuchElementException.class, events::next);
        assertThrows(SessionClosedException.class, session::take);
    }

    @Test
    void aNoticeThatWasFoundIsHandedOutToo() {
        Session session = opened(play(Wire.opened(), Wire.draining(5)));
        Iterator<Item> items = session.items().iterator();
        assertTrue(items.hasNext());
        session.close();
        assertInstanceOf(Notice.Draining.class, items.next());
        assertFalse(items.hasNext());
        assertThrows(NoSuchElementException.class, items::next);
    }

    @Test
    void noticesComeInOrderAsItemsOrToTheListener() {
        List<Object> told = Collections.synchronizedList(new ArrayList<>());
        Script script = play(Wire.opened(), Wire.batch(1, 1, 1), Wire.draining(5), Wire.batch(2, 2, 1));
        Session session = openedWith(options -> options.onNotice(told::add), script, script);
        session.take();
        session.take();
        assertEquals(List.of(new Notice.Draining(Duration.ofSeconds(5), Position.NONE)), told);
        Session other = client().subscription("s").open();
        open.add(other);
        Iterator<Item> items = other.items().iterator();
        assertInstanceOf(Event.class, items.next());
        assertInstanceOf(Notice.Draining.class, items.next());
        assertInstanceOf(Event.class, items.next());
    }

    @Test
    void aSlowReaderHoldsTheServerBack() {
        Session session = openedWith(options -> options.windowEvents(20), call -> {
            call.send(Wire.openedWithin(20));
            for (int first = 1; first < 200; first += 10) {
                int chunk = first;
                call.await(it -> it.granted() >= chunk + 9 && it.acked() >= chunk - 21);
                call.send(Wire.batch(chunk, chunk, 10));
            }
            call.awaitClose();
        });
        until(() -> server.call(0).granted() == 20);
        for (long taken = 1; taken <= 200; taken++) {
            assertTrue(server.call(0).granted() <= taken + 20 + 9);
            session.ack(session.take());
        }
    }

    @Test
    void threadsShareTheEvents() throws Exception {
        SubscribeResponse[] batches = IntStream.range(0, 200)
                .mapToObj(at -> Wire.batch(1 + 5L * at, 1 + 5 * at, 5))
                .toArray(SubscribeResponse[]::new);
        Session session = opened(call -> {
            call.send(Wire.opened());
            call.send(batches);
            call.awaitClose();
        });
        List<Long> seen = Collections.synchronizedList(new ArrayList<>());
        AtomicInteger ends = new AtomicInteger();
        List<Thread> threads = IntStream.range(0, 4)
                .mapToObj(number -> new Thread(() -> {
                    try {
                        while (true) {
                            seen.add(session.take().sequence());
                        }
                    } catch (SessionClosedException closed) {
                        ends.incrementAndGet();
                    }
                }))
                .toList();
        threads.forEach(Thread::start);
        until(() -> seen.size() == 1000);
        session.close();
        for (Thread thread : threads) {
            thread.join();
        }
        assertEquals(4, ends.get());
        assertEquals(
                LongStream.rangeClosed(1, 1000).boxed().toList(),
                seen.stream().sorted().toList());
    }

    @Test
    void anInterruptEndsOnlyTheWaiting() throws Exception {
        Session session = opened(play(Wire.opened(), Wire.batch(1, 1, 1)));
        session.take();
        Thread.currentThread().interrupt();
        assertThrows(InterruptedCallException.class, session::take);
        assertTrue(Thread.interrupted(), "the flag is set again");
        assertFalse(session.isClosed());
        assertTrue(session.poll(Duration.ZERO).isEmpty());
        Thread.currentThread().interrupt();
        assertThrows(
                InterruptedCallException.class, () -> client().subscription("s").open());
        assertTrue(Thread.interrupted());
        until(() -> server.call(1) == null || server.call(1).isGone());
    }

    /** As where an executor is shut down: the loop throws, and both are closed with the flag set. */
    @Test
    void anInterruptedThreadClosesWithoutLosingAcks() {
        List<String> lines = Collections.synchronizedList(new ArrayList<>());
        Logger log = Logger.getLogger("dev.feedmux");
        log.setFilter(line -> lines.add(line.getMessage()));
        CountDownLatch closed = new CountDownLatch(1);
        Session session = openedWith(options -> options.ackInterval(Duration.ofHours(1)), call -> {
            call.send(Wire.opened(), Wire.batch(1, 1, 1));
            call.awaitClose();
            closed.await();
            call.send(SubscribeResponse.newBuilder()
                    .setCommitted(Committed.newBuilder().setDeliverySequence(1))
                    .build());
        });
        open.add(() -> log.setFilter(null));
        session.ack(session.take());
        Thread.currentThread().interrupt();
        session.close();
        theClient().close();
        assertTrue(Thread.interrupted(), "the flag is set again");
        closed.countDown();
        theClient().close();
        assertEquals(1, server.call(0).acked());
        assertEquals(List.of(), lines);
    }

    @Test
    void errorsComeOutOfTheLoopAgainAndAgain() {
        Session session = opened(call -> {
            call.send(Wire.opened(), Wire.batch(1, 1, 1));
            throw ScriptedServer.status(Status.Code.OUT_OF_RANGE, "HISTORY_LOST", Map.of("oldest_time", "then"));
        });
        session.take();
        HistoryLostException error = assertThrows(HistoryLostException.class, session::take);
        assertEquals("then", error.metadata().get("oldest_time"));
        assertEquals("HISTORY_LOST: scripted", error.getMessage());
        assertThrows(
                HistoryLostException.class, () -> session.batches().iterator().next());
        StackTraceElement[] where = error.getSuppressed()[0].getStackTrace();
        assertTrue(List.of(where).stream().anyMatch(each -> each.getClassName().equals(SessionTest.class.getName())));
    }

    @Test
    void aSessionOutlivesTheCallInWhichItWasOpened() throws Exception {
        Script again = call -> {
            call.send(Wire.openedAt(1, 2), Wire.batch(1, 2, 1));
            call.awaitClose();
        };
        CountDownLatch cancelled = new CountDownLatch(1);
        Script first = call -> {
            call.send(Wire.opened(), Wire.batch(1, 1, 1));
            cancelled.await();
        };
        server = started(first, again);
        Context.CancellableContext context = Context.current().withCancellation();
        Session session = context.call(() -> client().subscription("s").open());
        open.add(session);
        session.ack(session.take());
        context.cancel(null);
        cancelled.countDown();
        assertEquals(2, session.take().sequence());
        assertEquals(2, session.epoch());
        assertFalse(server.call(1).open().getTakeover());
        assertEquals(Wire.position(1), server.call(1).open().getLastAcked().getPosition());
    }

    @Test
    void aSessionDroppedWithoutCloseEndsItsCall() {
        server = started(play(Wire.opened()));
        dropped();
        until(() -> {
            System.gc();
            return server.call(0).isGone();
        });
    }

    private void dropped() {
        assertEquals(1, client().subscription("s").open().epoch());
    }

    @Test
    void closingTheClientClosesItsSessions() {
        Session session = openedWith(
                options -> options.ackInterval(Duration.ofHours(1)), play(Wire.opened(), Wire.batch(1, 1, 3)));
        session.take();
        session.ack(session.take());
        theClient().close();
        assertEquals(2, server.call(0).acked());
        assertTrue(server.call(0).isClosed());
        assertTrue(session.isClosed());
        assertClientClosed(session::take);
        assertClientClosed(() -> session.poll(Duration.ZERO));
        assertClientClosed(() -> session.iterator().hasNext());
        assertClientClosed(() -> session.batches().iterator().next());
        assertClientClosed(() -> theClient().subscription("s").open());
        assertClientClosed(() -> theClient().subscription("s").get());
        session.close();
        assertThrows(SessionClosedException.class, session::take);
        assertFalse(session.iterator().hasNext());
    }

    @Test
    void closingTheClientEndsWaitingWithAnError() throws Exception {
        Session session = opened(play(Wire.opened()));
        CompletableFuture<Event> waiting = CompletableFuture.supplyAsync(session::take);
        theClient().close();
        ExecutionException error = assertThrows(ExecutionException.class, waiting::get);
        assertClientClosed(() -> {
            throw error.getCause();
        });
    }

    @Test
    void sessionsOfAClientCloseAtTheSameTime() {
        CountDownLatch both = new CountDownLatch(2);
        opened(call -> {
            call.send(Wire.opened());
            call.awaitClose();
            both.countDown();
            both.await();
        });
        FeedmuxClient client = theClient();
        Consumer<SessionOptions.Builder> patient = options -> options.closeTimeout(Duration.ofHours(1));
        open.add(client.subscription("other").open(patient));
        client.close();
        assertTrue(server.call(0).isClosed() && server.call(1).isClosed());
        assertFalse(server.call(0).isGone() || server.call(1).isGone(), "neither was cut");
    }

    @Test
    void closingTheClientEndsOpening() throws Exception {
        server = started(Call::awaitClose);
        FeedmuxClient client = client();
        CompletableFuture<Session> opening =
                CompletableFuture.supplyAsync(() -> client.subscription("s").open());
        until(() -> server.call(0) != null);
        client.close();
        ExecutionException error = assertThrows(ExecutionException.class, opening::get);
        assertClientClosed(() -> {
            throw error.getCause();
        });
    }

    /** The client of {@link #opened}. */
    private FeedmuxClient theClient() {
        return (FeedmuxClient) open.get(1);
    }

    private static void assertClientClosed(Executable call) {
        FeedmuxException error = assertThrows(FeedmuxException.class, call);
        assertEquals(FeedmuxException.class, error.getClass(), "not what ends a loop");
        assertEquals(Status.Code.CANCELLED, error.status());
        assertEquals("the client was closed", error.failure().message());
    }

    @Test
    void openingGivesUpAfterItsTimeoutAndSaysWhy() {
        server = started(play(Wire.opened()));
        FeedmuxClient client = client();
        server.close();
        UnavailableException error = assertThrows(
                UnavailableException.class,
                () -> client.subscription("s").open(options -> options.openTimeout(Duration.ofMillis(200))));
        assertTrue(error.getMessage().contains("refused"), error.getMessage());
    }

    @Test
    void anotherSessionsEventCannotBeAcked() {
        Script script = play(Wire.opened(), Wire.batch(1, 1, 1));
        Session session = opened(script);
        Session other = client().subscription("other").open();
        open.add(other);
        Event event = other.take();
        assertThrows(IllegalArgumentException.class, () -> session.ack(event));
    }

    private Session opened(Script... scripts) {
        return openedWith(options -> {}, scripts);
    }

    private Session openedWith(Consumer<SessionOptions.Builder> change, Script... scripts) {
        server = started(scripts);
        Session session = client().subscription("s").open(change);
        open.add(session);
        return session;
    }

    private ScriptedServer started(Script... scripts) {
        ScriptedServer made = new ScriptedServer(scripts);
        open.add(made);
        return made;
    }

    private FeedmuxClient client() {
        FeedmuxClient client =
                FeedmuxClient.builder(server.target()).sessions(QUICK).build();
        open.add(client);
        return client;
    }

    private static Script play(SubscribeResponse... messages) {
        return (Call call) -> {
            call.send(messages);
            call.awaitClose();
        };
    }
}
