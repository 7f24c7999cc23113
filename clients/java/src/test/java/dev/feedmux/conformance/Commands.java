package dev.feedmux.conformance;

import dev.feedmux.Event;
import dev.feedmux.Feed;
import dev.feedmux.FeedmuxClient;
import dev.feedmux.Format;
import dev.feedmux.Item;
import dev.feedmux.Notice;
import dev.feedmux.OnHistoryLost;
import dev.feedmux.Session;
import dev.feedmux.SessionOptions;
import dev.feedmux.SnapshotStatus;
import dev.feedmux.Start;
import dev.feedmux.SubscriptionDefinition;
import dev.feedmux.SubscriptionInfo;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.InterruptedCallException;
import dev.feedmux.errors.SessionClosedException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.bson.Document;
import org.jspecify.annotations.Nullable;

/** One method for each command, called on its own thread. */
final class Commands {
    /** A session and the items that it returned. */
    private static final class SessionRecord {
        private final Format format;
        private final List<Event> events = new ArrayList<>();
        private volatile @Nullable Session session;
        private @Nullable Thread waiting;

        private SessionRecord(Format format) {
            this.format = format;
        }

        private synchronized void enter() {
            waiting = Thread.currentThread();
        }

        private synchronized void leave() {
            waiting = null;
        }

        private synchronized void interrupt() {
            if (waiting != null) {
                waiting.interrupt();
            }
        }
    }

    private final Map<String, SessionRecord> records = new HashMap<>();
    private @Nullable FeedmuxClient client;

    Map<String, ?> run(Document command) {
        return switch (command.getString("do")) {
            case "hello" -> Map.of("client", "java", "version", "0.1.0", "runner", 1);
            case "new" -> make(command);
            case "open" -> open(command);
            case "create" -> create(command);
            case "seek" -> seek(command);
            case "resolve" -> resolve(command);
            case "take" -> take(command);
            case "ack" -> ack(command);
            case "state" -> Reports.state(session(command));
            case "close" -> close(command);
            case "cancel" -> abandon(record(command));
            case "close_client" -> closeClient();
            case "reset" -> reset();
            default -> throw new IllegalArgumentException("no command " + command.getString("do"));
        };
    }

    private Map<String, ?> make(Document command) {
        reset();
        FeedmuxClient.Builder builder = FeedmuxClient.builder(command.getString("target"))
                .source(command.get("source", "main"))
                .timeout(Arguments.seconds(command.get("timeout_s", 30)));
        if (command.getString("api_key") != null) {
            builder.apiKey(command.getString("api_key"));
        }
        List<String> tokens = command.getList("tokens", String.class, List.of());
        if (!tokens.isEmpty()) {
            AtomicInteger asked = new AtomicInteger();
            builder.token(() -> {
                String token = tokens.get(Math.min(asked.getAndIncrement(), tokens.size() - 1));
                if (token == null) {
                    throw new IllegalStateException("no token now");
                }
                return token;
            });
        }
        if (command.get("tls") instanceof Document tls) {
            builder.tls(Arguments.tls(tls));
        }
        synchronized (this) {
            client = builder.build();
        }
        return Map.of();
    }

    private Map<String, ?> open(Document command) {
        Document options = command.get("options", new Document());
        String format = options.get("format", "bson").toUpperCase(Locale.ROOT);
        SessionRecord record = new SessionRecord(Format.valueOf(format));
        synchronized (this) {
            records.put(command.getString("session"), record);
        }
        FeedmuxClient opener = connected();
        Consumer<SessionOptions.Builder> change = builder -> {
            Arguments.options(builder, options);
            builder.takeover(command.getBoolean("takeover", false));
        };
        record.enter();
        try {
            record.session = command.getString("subscription") != null
                    ? opener.subscription(command.getString("subscription")).open(change)
                    : opener.feed(feed(command)).open(Arguments.start(command.get("start")), change);
        } finally {
            record.leave();
        }
        return Map.of();
    }

    private synchronized FeedmuxClient connected() {
        if (client == null) {
            throw new IllegalStateException("no client");
        }
        return client;
    }

    private Map<String, ?> create(Document command) {
        String policy = command.getString("on_history_lost");
        SubscriptionDefinition definition = SubscriptionDefinition.of(feed(command))
                .from(Arguments.start(command.get("start")))
                .withOnHistoryLost(
                        policy == null ? OnHistoryLost.FAIL : OnHistoryLost.valueOf(policy.toUpperCase(Locale.ROOT)));
        return copied(
                connected().subscription(command.getString("subscription")).create(definition));
    }

    private Map<String, ?> seek(Document command) {
        Start to = Arguments.start(command.get("start"));
        return copied(
                connected().subscription(command.getString("subscription")).seek(to));
    }

    private Map<String, ?> resolve(Document command) {
        Start start = Arguments.start(command.get("start"));
        return Map.of(
                "position",
                Reports.position(connected().feed(feed(command)).resolve(start).position()));
    }

    private static Feed feed(Document command) {
        return Arguments.feed(command.get("feed", new Document()));
    }

    private static Map<String, ?> copied(SubscriptionInfo info) {
        SnapshotStatus snapshot = info.snapshot();
        return snapshot == null ? Map.of() : Map.of("copied", snapshot.documents());
    }

    private Map<String, ?> take(Document command) {
        SessionRecord record = record(command);
        Session session = session(command);
        int count = command.get("count") == null ? Integer.MAX_VALUE : command.getInteger("count");
        String untilNotice = command.getString("until_notice");
        Object timeout = command.get("timeout_s");
        long end = System.nanoTime() + (timeout == null ? Duration.ofDays(1) : Arguments.seconds(timeout)).toNanos();
        List<String> report = command.getList("report", String.class, List.of("document"));
        List<Object> items = new ArrayList<>();
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("items", items);
        String outcome = "enough";
        int taken = 0;
        record.enter();
        try {
            while (taken < count) {
                Optional<Item> item = session.pollItem(Duration.ofNanos(Math.max(0, end - System.nanoTime())));
                if (item.isEmpty()) {
                    outcome = "timeout";
                    break;
                }
                if (item.get() instanceof Event event) {
                    record.events.add(event);
                    items.add(Reports.event(event, report, record.format));
                    taken++;
                } else if (item.get() instanceof Notice notice) {
                    Map<String, Object> told = Reports.notice(notice);
                    items.add(told);
                    if (untilNotice != null
                            && told.get("notice") instanceof Map<?, ?> it
                            && untilNotice.equals(it.get("kind"))) {
                        break;
                    }
                }
            }
        } catch (SessionClosedException closed) {
            outcome = "closed";
        } catch (InterruptedCallException interrupted) {
            Thread.interrupted();
            outcome = "cancelled";
        } catch (FeedmuxException error) {
            outcome = "error";
            result.put("error", Reports.error(error));
        } finally {
            record.leave();
        }
        result.put("outcome", outcome);
        return result;
    }

    private Map<String, ?> ack(Document command) {
        Integer number = command.getInteger("event");
        if (number == null) {
            session(command).ackAll();
        } else {
            session(command).ack(record(command).events.get(number - 1));
        }
        return Map.of();
    }

    private Map<String, ?> close(Document command) {
        Object timeout = command.get("timeout_s");
        if (timeout == null) {
            session(command).close();
        } else {
            session(command).close(Arguments.seconds(timeout));
        }
        return Map.of();
    }

    private Map<String, ?> closeClient() {
        FeedmuxClient open;
        synchronized (this) {
            open = client;
        }
        if (open != null) {
            open.close();
        }
        return Map.of();
    }

    Map<String, ?> reset() {
        List<SessionRecord> left;
        FeedmuxClient old;
        synchronized (this) {
            left = List.copyOf(records.values());
            old = client;
            records.clear();
            client = null;
        }
        left.forEach(Commands::abandon);
        if (old != null) {
            old.close();
        }
        return Map.of();
    }

    private static Map<String, ?> abandon(SessionRecord record) {
        record.interrupt();
        Session session = record.session;
        if (session != null) {
            session.close(Duration.ZERO);
        }
        return Map.of();
    }

    private synchronized SessionRecord record(Document command) {
        SessionRecord record = records.get(command.getString("session"));
        if (record == null) {
            throw new IllegalArgumentException("no session " + command.getString("session"));
        }
        return record;
    }

    private Session session(Document command) {
        Session session = record(command).session;
        if (session == null) {
            throw new IllegalArgumentException("not open: " + command.getString("session"));
        }
        return session;
    }
}
