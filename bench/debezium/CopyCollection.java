import com.sun.management.OperatingSystemMXBean;
import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Reads the existing documents of a collection with Debezium's engine, without Kafka and with Debezium's defaults, for
 * {@code bench/snapshot_debezium.py}: {@code --uri URI --namespace DATABASE.COLLECTION --count N}. Writes
 * {@code ready}, waits for a line, and writes the measurements as JSON. It has read everything once before that, so
 * that the virtual machine has compiled its code.
 */
public final class CopyCollection {
    private CopyCollection() {}

    /** One run. */
    public static void main(String[] given) throws Exception {
        String uri = given[1];
        String namespace = given[3];
        int count = Integer.parseInt(given[5]);
        copy(uri, namespace, count);
        System.out.println("ready");
        if (System.in.read() < 0) {
            return;
        }
        long[] used = copy(uri, namespace, count);
        System.out.printf(
                "{\"elapsed_s\": %s, \"cpu_s\": %s, \"count\": %d}%n", used[0] / 1e9, used[1] / 1e9, count);
        System.exit(0);
    }

    /** Returns the nanoseconds, and those of CPU, until the last document. */
    private static long[] copy(String uri, String namespace, int count) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("name", "copy");
        properties.setProperty("connector.class", "io.debezium.connector.mongodb.MongoDbConnector");
        properties.setProperty("mongodb.connection.string", uri);
        properties.setProperty("topic.prefix", "bench");
        properties.setProperty("collection.include.list", namespace);
        properties.setProperty("snapshot.mode", "initial_only");
        properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        AtomicInteger read = new AtomicInteger();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        CountDownLatch done = new CountDownLatch(1);
        DebeziumEngine<RecordChangeEvent<SourceRecord>> engine = DebeziumEngine.create(
                        ChangeEventFormat.of(Connect.class))
                .using(properties)
                .using((success, message, error) -> {
                    failure.set(error);
                    done.countDown();
                })
                .notifying((List<RecordChangeEvent<SourceRecord>> records,
                        DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) -> {
                    for (RecordChangeEvent<SourceRecord> each : records) {
                        if (each.record().value() != null) {
                            read.incrementAndGet();
                        }
                        committer.markProcessed(each);
                    }
                    committer.markBatchFinished();
                    if (read.get() >= count) {
                        done.countDown();
                    }
                })
                .build();
        long began = System.nanoTime();
        long cpu = cpuNanos();
        new Thread(engine, "debezium").start();
        done.await();
        long[] used = {System.nanoTime() - began, cpuNanos() - cpu};
        if (read.get() < count) {
            throw new IllegalStateException("read " + read + " of " + count + " documents", failure.get());
        }
        engine.close();
        return used;
    }

    private static long cpuNanos() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
