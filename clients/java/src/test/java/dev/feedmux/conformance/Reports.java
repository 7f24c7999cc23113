package dev.feedmux.conformance;

import dev.feedmux.Event;
import dev.feedmux.Format;
import dev.feedmux.Notice;
import dev.feedmux.Position;
import dev.feedmux.Session;
import dev.feedmux.SnapshotStatus;
import dev.feedmux.errors.FeedInvalidatedException;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.InterruptedCallException;
import dev.feedmux.errors.ProtocolException;
import dev.feedmux.errors.SessionClosedException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.bson.BsonDocument;
import org.bson.BsonTimestamp;
import org.bson.RawBsonDocument;
import org.bson.codecs.BsonDocumentCodec;
import org.bson.json.JsonMode;
import org.bson.json.JsonWriterSettings;
import org.jspecify.annotations.Nullable;

/** Converts what the client returns to the form that the harness expects. */
final class Reports {
    private static final JsonWriterSettings CANONICAL =
            JsonWriterSettings.builder().outputMode(JsonMode.EXTENDED).build();

    private Reports() {}

    static Map<String, Object> event(Event event, List<String> report, Format format) {
        Map<String, Object> reported = new LinkedHashMap<>();
        if (report.contains("document")) {
            reported.put("document", new Json.Raw(event.document().toJson(CANONICAL)));
        }
        if (report.contains("raw")) {
            reported.put(
                    "raw",
                    format == Format.BSON
                            ? bytes(event.bson())
                            : base64(event.json().getBytes(StandardCharsets.UTF_8)));
        }
        if (report.contains("snapshot")) {
            reported.put("snapshot", event.isSnapshot());
        }
        if (report.contains("generation")) {
            reported.put("generation", event.batch().generation());
        }
        if (report.contains("token")) {
            reported.put("token", bytes(event.resumeToken()));
        }
        return Map.of("event", reported);
    }

    static Map<String, Object> notice(Notice notice) {
        Map<String, Object> told = new LinkedHashMap<>();
        if (notice instanceof Notice.Draining it) {
            told.put("kind", "draining");
            told.put("deadline_s", seconds(it.deadline()));
            told.put("position", position(it.position()));
        } else if (notice instanceof Notice.Rewound it) {
            told.put("kind", "rewound");
            told.put("from", time(it.beginsAt()));
            told.put("to", time(it.hadReached()));
        } else if (notice instanceof Notice.Skipped it) {
            told.put("kind", "skipped");
            told.put("from", time(it.hadReached()));
            told.put("to", time(it.beginsAt()));
            told.put("from_position", position(it.hadReachedPosition()));
            told.put("to_position", position(it.beginsAtPosition()));
        } else if (notice instanceof Notice.HistoryAtRisk it) {
            told.put("kind", "history_at_risk");
            told.put("remaining_s", seconds(it.remaining()));
        } else if (notice instanceof Notice.Gap it) {
            told.put("kind", "gap");
            told.put("from", time(it.after()));
            told.put("to", time(it.before()));
            told.put("reason", it.reason());
        } else if (notice instanceof Notice.Degraded it) {
            told.put("kind", "degraded");
            told.put("dependency", it.dependency());
            told.put("unavailable", it.unavailable());
        } else if (notice instanceof Notice.Unacknowledged it) {
            told.put("kind", "unacknowledged");
            told.put("events", it.events());
        } else if (notice instanceof Notice.SnapshotProgress it) {
            SnapshotStatus status = it.status();
            told.put("kind", "snapshot_progress");
            told.put("documents", status.documents());
            told.put("bytes", status.bytes());
            told.put("documents_estimated", status.documentsEstimated());
            told.put("remaining_s", status.remaining() == null ? null : seconds(status.remaining()));
            told.put("read_time", time(status.readTime()));
            told.put("namespace", status.namespace());
        } else if (notice instanceof Notice.SnapshotComplete it) {
            told.put("kind", "snapshot_complete");
            told.put("documents", it.documents());
            told.put("bytes", it.bytes());
            told.put("read_time", time(it.readTime()));
            told.put("generation", it.generation());
        } else if (notice instanceof Notice.Disconnected it) {
            told.put("kind", "disconnected");
            told.put("reason", it.error().reason());
            told.put("status", it.error().status().name());
            told.put("retry_in_s", seconds(it.retryIn()));
        }
        return Map.of("notice", told);
    }

    static Map<String, Object> state(Session session) {
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("position", position(session.position()));
        state.put("resume_token", bytes(session.resumeToken()));
        state.put("cluster_time", time(session.clusterTime()));
        state.put("committed", position(session.committed()));
        state.put("epoch", session.epoch());
        state.put("closed", session.isClosed());
        SnapshotStatus copying = session.copying();
        state.put("copying", copying != null);
        state.put("generation", copying == null ? null : copying.generation());
        return state;
    }

    static Map<String, Object> error(FeedmuxException error) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("type", type(error));
        told.put("reason", error.reason());
        told.put("status", error.status().name());
        told.put("message", error.failure().message());
        told.put("metadata", error.metadata());
        Duration retryAfter = error.retryAfter();
        told.put("retry_after_s", retryAfter == null ? null : seconds(retryAfter));
        if (error instanceof FeedInvalidatedException invalidated && invalidated.feedPosition() != null) {
            told.put("position", position(invalidated.feedPosition().position()));
            told.put("resume_token", bytes(invalidated.feedPosition().resumeToken()));
        }
        return told;
    }

    private static String type(FeedmuxException error) {
        if (error instanceof InterruptedCallException || error instanceof SessionClosedException) {
            return "Cancelled";
        }
        if (error instanceof ProtocolException) {
            return "ProtocolError";
        }
        String name = error.getClass().getSimpleName().replace("Exception", "");
        return name.equals("Feedmux") ? "FeedmuxError" : name;
    }

    private static double seconds(Duration duration) {
        return duration.toNanos() / 1e9;
    }

    static String position(Position position) {
        return base64(position.toBytes());
    }

    private static @Nullable List<Long> time(@Nullable BsonTimestamp time) {
        return time == null
                ? null
                : List.of(Integer.toUnsignedLong(time.getTime()), Integer.toUnsignedLong(time.getInc()));
    }

    private static @Nullable String bytes(@Nullable BsonDocument document) {
        if (document == null) {
            return null;
        }
        RawBsonDocument raw = document instanceof RawBsonDocument already
                ? already
                : new RawBsonDocument(document, new BsonDocumentCodec());
        ByteBuffer buffer = raw.getByteBuffer().asNIO();
        byte[] copy = new byte[buffer.remaining()];
        buffer.get(copy);
        return base64(copy);
    }

    private static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
