package dev.feedmux.bench;

import com.google.protobuf.ByteString;
import dev.feedmux.Event;
import dev.feedmux.FeedmuxClient;
import dev.feedmux.Session;
import dev.feedmux.support.ScriptedServer;
import dev.feedmux.support.Wire;
import dev.feedmux.v1.Batch;
import dev.feedmux.v1.SubscribeResponse;
import java.time.Instant;
import java.util.Date;
import org.bson.BsonTimestamp;
import org.bson.Document;

/**
 * Makes the virtual machine compile the code of a reader, as in a service that has run for some seconds: reads
 * generated events from a server in the process.
 */
final class WarmUp {
    private static final int BATCH_EVENTS = 500;
    private static final int BATCHES = 600;

    private WarmUp() {}

    static void run() {
        try (ScriptedServer server = new ScriptedServer(WarmUp::play);
                FeedmuxClient client = FeedmuxClient.builder(server.target()).build();
                Session session = client.subscription("warm-up").open()) {
            for (int read = 0; read < BATCHES * BATCH_EVENTS; read++) {
                Event event = session.take();
                if (event.document().isEmpty()) {
                    throw new IllegalStateException("an empty event");
                }
                session.ack(event);
            }
        }
    }

    private static void play(ScriptedServer.Call call) throws InterruptedException {
        ByteString events = ByteString.EMPTY;
        for (int number = 0; number < BATCH_EVENTS; number++) {
            events = events.concat(Wire.encode(event(number)));
        }
        Batch.Builder batch = Batch.newBuilder()
                .setBson(ByteString.copyFrom(events.toByteArray()))
                .setEventCount(BATCH_EVENTS)
                .setPosition(Wire.position(1));
        call.send(Wire.opened());
        for (long first = 1; first < (long) BATCHES * BATCH_EVENTS; first += BATCH_EVENTS) {
            long last = first + BATCH_EVENTS - 1;
            call.await(it -> it.granted() >= last);
            call.send(SubscribeResponse.newBuilder()
                    .setBatch(batch.setFirstDeliverySequence(first))
                    .build());
        }
        call.awaitClose();
    }

    private static Document event(int number) {
        Document order = new Document("_id", number)
                .append("customer", "customer " + number)
                .append("total", number * 1.5)
                .append("at", Date.from(Instant.EPOCH))
                .append("note", "x".repeat(200));
        return new Document("_id", Wire.token(number))
                .append("operationType", "insert")
                .append("clusterTime", new BsonTimestamp(number, 1))
                .append("fullDocument", order)
                .append("ns", new Document("db", "shop").append("coll", "orders"))
                .append("documentKey", new Document("_id", number));
    }
}
