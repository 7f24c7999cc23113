package dev.feedmux.bench;

import com.sun.management.OperatingSystemMXBean;
import dev.feedmux.Batch;
import dev.feedmux.Event;
import dev.feedmux.FeedmuxClient;
import dev.feedmux.Session;
import dev.feedmux.Subscription;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.List;
import org.bson.BsonValue;

/**
 * Reads a backlog for {@code bench/clients.py}: {@code --endpoint HOST:PORT --subscription NAME --count N}. Writes
 * {@code ready}, waits for a line, reads N events, decoding and acking each, and writes the measurements as JSON. With
 * {@code --raw} it reads by batches, undecoded; with {@code --warm} in a virtual machine that has compiled its code.
 */
public final class ReadBacklog {
    private ReadBacklog() {}

    /** One run. */
    public static void main(String[] arguments) throws IOException {
        List<String> given = Arrays.asList(arguments);
        int count = Integer.parseInt(value(given, "--count"));
        boolean raw = given.contains("--raw");
        try (FeedmuxClient client =
                FeedmuxClient.builder(value(given, "--endpoint")).build()) {
            Subscription subscription = client.subscription(value(given, "--subscription"));
            subscription.get();
            if (given.contains("--warm")) {
                WarmUp.run();
            }
            System.out.println("ready");
            if (System.in.read() < 0) {
                return;
            }
            long began = System.nanoTime();
            long cpu = cpuNanos();
            try (Session session = subscription.open()) {
                BsonValue lastId = raw ? batches(session, count) : events(session, count);
                double elapsed = (System.nanoTime() - began) / 1e9;
                double used = (cpuNanos() - cpu) / 1e9;
                System.out.printf(
                        "{\"elapsed_s\": %s, \"cpu_s\": %s, \"count\": %d, \"last_id\": %d, \"events_per_s\": %.0f}%n",
                        elapsed, used, count, lastId.asNumber().longValue(), count / elapsed);
            }
        }
    }

    private static BsonValue events(Session session, int count) {
        int read = 0;
        Event last = null;
        for (Event event : session) {
            if (event.document().isEmpty()) {
                throw new IllegalStateException("an empty event");
            }
            session.ack(event);
            last = event;
            if (++read == count) {
                break;
            }
        }
        return id(last);
    }

    private static BsonValue batches(Session session, int count) {
        int read = 0;
        Event last = null;
        for (Batch batch : session.batches()) {
            session.ack(batch);
            read += batch.size();
            last = batch.event(batch.size() - 1);
            if (read >= count) {
                break;
            }
        }
        return id(last);
    }

    private static BsonValue id(Event event) {
        return event.bson().getDocument("documentKey").get("_id");
    }

    private static String value(List<String> given, String name) {
        return given.get(given.indexOf(name) + 1);
    }

    private static long cpuNanos() {
        return ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class).getProcessCpuTime();
    }
}
