package dev.feedmux;

import static dev.feedmux.support.ScriptedServer.until;
import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.feedmux.errors.InvalidArgumentException;
import dev.feedmux.errors.SubscriptionExistsException;
import dev.feedmux.errors.SubscriptionNotFoundException;
import dev.feedmux.errors.UnavailableException;
import dev.feedmux.support.ScriptedServer;
import dev.feedmux.support.ScriptedServer.Call;
import dev.feedmux.support.Wire;
import io.grpc.Status;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import org.bson.BsonInt32;
import org.bson.BsonString;
import org.bson.Document;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

@Timeout(120)
final class ClientTest {
    /** Against a real server: tests/clients/test_java.py starts the server and passes its address. */
    @Test
    @EnabledIfEnvironmentVariable(named = "FEEDMUX_ENDPOINT", matches = ".+")
    void controlsSubscriptions() {
        try (FeedmuxClient client = FeedmuxClient.builder(System.getenv("FEEDMUX_ENDPOINT"))
                .apiKey(System.getenv("FEEDMUX_API_KEY"))
                .build()) {
            Subscription subscription = client.subscription("java-" + UUID.randomUUID());
            assertThrows(SubscriptionNotFoundException.class, subscription::get);
            Feed feed = Feed.builder()
                    .database("shop")
                    .collection("orders")
                    .pipeline(new Document("$match", new Document("operationType", "insert")))
                    .fullDocument(FullDocument.UPDATE_LOOKUP)
                    .comment(new BsonString("from Java"))
                    .collation(new Document("locale", "de"))
                    .batchSize(100)
                    .build();
            SubscriptionDefinition definition = SubscriptionDefinition.of(feed).withOnInvalidate(OnInvalidate.CONTINUE);
            SubscriptionInfo created = subscription.create(definition);
            assertEquals(created, subscription.create(definition), "the same again changes nothing");
            assertEquals(created, subscription.get());
            assertEquals(feed.pipeline(), created.feed().pipeline());
            assertEquals(feed.collation(), created.feed().collation());
            assertEquals(feed.comment(), created.feed().comment());
            assertEquals(feed.fullDocument(), created.feed().fullDocument());
            assertEquals(OnInvalidate.CONTINUE, created.onInvalidate());
            assertThrows(SubscriptionExistsException.class, () -> subscription.create(Feed.database("shop")));
            assertTrue(client.subscriptions().anyMatch(each -> each.name().equals(subscription.name())));

            SubscriptionInfo updated = subscription.update(SubscriptionUpdate.nothing()
                    .withOnHistoryLost(OnHistoryLost.EARLIEST)
                    .withEtag(created.etag()));
            assertEquals(OnHistoryLost.EARLIEST, updated.onHistoryLost());
            assertEquals(created.position(), updated.position());
            ResolvedPosition now = client.feed(feed).resolve(Start.latest());
            assertNotNull(now.time());
            assertEquals(
                    now.clusterTime(),
                    subscription.seek(Start.after(now.position())).clusterTime());
            assertThrows(
                    InvalidArgumentException.class,
                    () -> subscription.seek(Start.after(Position.parse("bm8gcG9zaXRpb24"))));

            Explanation explanation =
                    client.feed(feed).explain(Start.atTime(Instant.now().minusSeconds(1)));
            assertNull(explanation.refusal());
            assertTrue(explanation.pipeline().contains("$changeStream"));
            Feed forbidden = Feed.builder().pipelineJson("[{\"$out\": \"x\"}]").build();
            assertNotNull(client.feed(forbidden).explain().refusal());
            Feed missing = Feed.builder().database("nowhere").collection("none").build();
            assertTrue(client.feed(missing).explain().scopeMissing());

            subscription.delete();
            subscription.deleteIfExists();
            assertThrows(SubscriptionNotFoundException.class, subscription::delete);
        }
    }

    @Test
    void aTokenIsAskedForAnewByEveryCall() throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(call -> call.send(Wire.opened()), call -> {
                    call.send(Wire.opened());
                    call.awaitClose();
                });
                FeedmuxClient client = FeedmuxClient.builder(server.target())
                        .token(() -> "t" + asked.incrementAndGet())
                        .build();
                Session session = client.subscription("s")
                        .open(options -> options.backoff(Duration.ofMillis(1), Duration.ofMillis(1)))) {
            assertEquals("Bearer t1", server.authorization());
            assertEquals("Bearer t2", server.authorization());
            assertTrue(!session.isClosed());
        }
    }

    static List<Supplier<String>> failingSuppliers() {
        return List.of(
                () -> {
                    throw new IllegalStateException("no keys today");
                },
                () -> {
                    throw new NoClassDefFoundError("no keys today");
                },
                () -> {
                    throw new UnsupportedOperationException();
                },
                () -> null,
                () -> " \n",
                () -> "secret\u00e9");
    }

    @Test
    void aTokenFunctionMayFailWithCausesThatFormACircle() {
        RuntimeException outer = new RuntimeException("no keys"), inner = new RuntimeException("no keys");
        outer.initCause(inner);
        inner.initCause(outer);
        Supplier<String> failing = () -> {
            throw outer;
        };
        try (ScriptedServer server = new ScriptedServer(Call::awaitClose);
                FeedmuxClient client =
                        FeedmuxClient.builder(server.target()).token(failing).build()) {
            assertEquals("the token function failed: no keys", failureOf(client));
        }
    }

    @Test
    void aTokenFunctionThatDoesNotReturnIsNamed() {
        CountDownLatch never = new CountDownLatch(1);
        Supplier<String> waiting = () -> {
            assertDoesNotThrow(() -> never.await());
            return "";
        };
        try (ScriptedServer server = new ScriptedServer(Call::awaitClose);
                FeedmuxClient client = FeedmuxClient.builder(server.target())
                        .timeout(Duration.ofMillis(100))
                        .token(waiting)
                        .build()) {
            // The first calls may end before there is a connection.
            until(() -> failureOf(client).equals("the token function has not returned within 100 ms"));
        } finally {
            never.countDown();
        }
    }

    /** Each call calls the function; those that wait for a thread end with their timeout. */
    @Test
    void aTokenFunctionThatHangsOccupiesFewThreads() {
        CountDownLatch never = new CountDownLatch(1);
        Set<Thread> threads = ConcurrentHashMap.newKeySet();
        Supplier<String> waiting = () -> {
            threads.add(Thread.currentThread());
            assertDoesNotThrow(() -> never.await());
            return "token";
        };
        try (ScriptedServer server = new ScriptedServer(Call::awaitClose);
                FeedmuxClient client = FeedmuxClient.builder(server.target())
                        .timeout(Duration.ofMillis(10))
                        .token(waiting)
                        .build()) {
            for (int call = 0; call < 100; call++) {
                failureOf(client);
            }
            assertTrue(threads.size() <= 16, () -> threads.size() + " threads");
        } finally {
            never.countDown();
        }
    }

    private static String failureOf(FeedmuxClient client) {
        Subscription subscription = client.subscription("s");
        return assertThrows(UnavailableException.class, subscription::get)
                .failure()
                .message();
    }

    @ParameterizedTest
    @MethodSource("failingSuppliers")
    void aSessionSurvivesOneFailureOfTheTokenFunction(Supplier<String> failing) throws Exception {
        AtomicInteger asked = new AtomicInteger();
        try (ScriptedServer server = new ScriptedServer(call -> {
                    call.send(Wire.opened());
                    call.awaitClose();
                });
                FeedmuxClient client = FeedmuxClient.builder(server.target())
                        .token(() -> asked.incrementAndGet() == 1 ? failing.get() : "t" + asked + "\r\n")
                        .build();
                Session session = client.subscription("s")
                        .open(options -> options.backoff(Duration.ofMillis(1), Duration.ofMillis(1)))) {
            assertEquals(1, session.epoch());
            assertEquals("Bearer t2", server.authorization());
        }
    }

    @ParameterizedTest
    @MethodSource("failingSuppliers")
    void anyOtherCallFailsWithTheTokenFunction(Supplier<String> failing) {
        try (ScriptedServer server = new ScriptedServer(Call::awaitClose);
                FeedmuxClient client =
                        FeedmuxClient.builder(server.target()).token(failing).build()) {
            UnavailableException error = assertThrows(
                    UnavailableException.class, () -> client.subscription("s").get());
            assertEquals(Status.Code.UNAVAILABLE, error.status());
            assertTrue(error.failure().message().startsWith("the token function failed: "), error.getMessage());
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            assertFalse(trace.toString().contains("secret"));
            assertTrue(
                    error.failure()
                            .message()
                            .matches(".*(no keys today|UnsupportedOperationException|is empty|visible ASCII)"),
                    error.getMessage());
        }
    }

    @Test
    void aMissingTargetIsNamed() {
        NullPointerException error = assertThrows(NullPointerException.class, () -> FeedmuxClient.builder(null));
        assertEquals("the target is host:port", error.getMessage());
        for (String wrong : List.of("", "localhost", "http://localhost:7117", "localhost:", "::1")) {
            assertThrows(IllegalArgumentException.class, () -> FeedmuxClient.builder(wrong), wrong);
        }
        for (String target : List.of("[::1]:7117", "dns:///localhost", "unix:/run/feedmux.sock", "own://somewhere")) {
            assertDoesNotThrow(() -> FeedmuxClient.builder(target), target);
        }
    }

    @Test
    void keysAreStrippedAndChecked() throws Exception {
        FeedmuxClient.Builder builder = FeedmuxClient.builder("localhost:1");
        for (String key :
                new String[] {null, "", " \t\r\n", "secret key", "secret\nkey", "secret\u00e9", "secret\u007f"}) {
            List<Executable> uses = List.of(() -> builder.apiKey(key), () -> builder.token(key));
            for (Executable use : uses) {
                IllegalArgumentException error = assertThrows(IllegalArgumentException.class, use);
                assertFalse(error.getMessage().contains("secret"));
            }
        }
        try (ScriptedServer server = new ScriptedServer(call -> call.send(Wire.opened()));
                FeedmuxClient client = FeedmuxClient.builder(server.target())
                        .apiKey(" \tkey~!\r\n")
                        .build();
                Session session = client.subscription("s").open()) {
            assertEquals(1, session.epoch());
            assertEquals("Bearer key~!", server.authorization());
        }
    }

    @Test
    void aKeyAndATokenAreNotTakenTogether() {
        FeedmuxClient.Builder builder =
                FeedmuxClient.builder("localhost:1").token("t").apiKey("k");
        assertThrows(IllegalArgumentException.class, builder::build);
        assertThrows(
                IllegalArgumentException.class, () -> builder.token(() -> "t").build());
    }

    @Test
    void noClientTakesOverByDefault() {
        SessionOptions options =
                SessionOptions.defaults().toBuilder().takeover(true).build();
        FeedmuxClient.Builder builder = FeedmuxClient.builder("localhost:1");
        assertThrows(IllegalArgumentException.class, () -> builder.sessions(options));
    }

    @Test
    void argumentsAreCheckedBeforeAnythingIsSent() {
        try (FeedmuxClient client = FeedmuxClient.builder("localhost:1").build()) {
            Subscription subscription = client.subscription("s");
            assertThrows(IllegalArgumentException.class, () -> subscription.update(SubscriptionUpdate.nothing()));
            assertThrows(IllegalArgumentException.class, () -> subscription.open(options -> options.windowEvents(0)));
            assertThrows(
                    IllegalArgumentException.class,
                    () -> subscription.open(options -> options.heartbeat(Duration.ofMillis(999))));
            assertThrows(NullPointerException.class, () -> subscription.open(options -> options.onNotice(null)));
            assertThrows(NullPointerException.class, () -> subscription.open(options -> options.format(null)));
            assertThrows(
                    NullPointerException.class,
                    () -> client.feed(Feed.deployment()).open(Start.after(null)));
            assertThrows(IllegalArgumentException.class, () -> new Tls(null, Path.of("c.pem"), null, null));
        }
    }

    @Test
    void aDurationMayBeOfAnyLength() throws Exception {
        Duration forever = Duration.ofSeconds(Long.MAX_VALUE);
        try (ScriptedServer server = new ScriptedServer(call -> {
                    call.send(Wire.opened());
                    call.send(Wire.batch(1, 1, 1));
                    call.awaitClose();
                });
                FeedmuxClient client =
                        FeedmuxClient.builder(server.target()).timeout(forever).build();
                Session session = client.subscription("s")
                        .open(options -> options.ackInterval(forever)
                                .openTimeout(forever)
                                .reconnectTimeout(forever)
                                .closeTimeout(forever)
                                .backoff(forever, forever))) {
            assertEquals(1, session.poll(forever).orElseThrow().sequence());
            assertEquals(Optional.empty(), session.poll(Duration.ofSeconds(Long.MIN_VALUE)));
            session.close(forever);
        }
    }

    @Test
    void valuesSurviveTheWire() {
        Feed feed = Feed.builder()
                .source("other")
                .database("d")
                .pipeline(List.of(new Document("$match", new Document("a", 1))))
                .comment(new BsonInt32(7))
                .fullDocument(FullDocument.UPDATE_LOOKUP)
                .fullDocumentBeforeChange(FullDocumentBeforeChange.REQUIRED)
                .showExpandedEvents(true)
                .readPreference(ReadPreference.SECONDARY_PREFERRED)
                .build();
        dev.feedmux.v1.Feed message = Messages.feed(feed, "main");
        assertEquals("updateLookup", message.getFullDocument());
        assertEquals("required", message.getFullDocumentBeforeChange());
        assertEquals("secondaryPreferred", message.getReadPreference());
        assertEquals(feed, Messages.feed(message));
        assertNull(Messages.feed(message.toBuilder().setFullDocument("newer").build())
                .fullDocument());
        Position position = Position.of(new byte[] {1, -2, 3});
        assertEquals(position, Position.parse(position.toString()));
    }
}
