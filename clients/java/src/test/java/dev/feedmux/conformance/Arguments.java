package dev.feedmux.conformance;

import dev.feedmux.Feed;
import dev.feedmux.Format;
import dev.feedmux.FullDocument;
import dev.feedmux.FullDocumentBeforeChange;
import dev.feedmux.Position;
import dev.feedmux.SessionOptions;
import dev.feedmux.Start;
import dev.feedmux.Tls;
import java.nio.file.Path;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import org.bson.BsonTimestamp;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.jspecify.annotations.Nullable;

/** Converts the fields of commands to the client's values. */
final class Arguments {
    private Arguments() {}

    static Tls tls(Document tls) {
        return new Tls(path(tls, "root"), path(tls, "certificate"), path(tls, "key"), tls.getString("server_name"));
    }

    static Feed feed(Document feed) {
        Feed.Builder builder = Feed.builder();
        Optional.ofNullable(feed.getString("database")).ifPresent(builder::database);
        Optional.ofNullable(feed.getString("collection")).ifPresent(builder::collection);
        return builder.pipeline(feed.getList("pipeline", Document.class, List.of()))
                .fullDocument(constant(FullDocument.class, feed.getString("full_document")))
                .fullDocumentBeforeChange(
                        constant(FullDocumentBeforeChange.class, feed.getString("full_document_before_change")))
                .showExpandedEvents(feed.getBoolean("show_expanded_events", false))
                .batchSize(feed.get("batch_size", 0))
                .extraOptions(feed.getList("extra_options", String.class, List.of()))
                .build();
    }

    /** {@code updateLookup} is UPDATE_LOOKUP. */
    private static <E extends Enum<E>> @Nullable E constant(Class<E> type, @Nullable String name) {
        return name == null
                ? null
                : Enum.valueOf(type, name.replaceAll("([A-Z])", "_$1").toUpperCase(Locale.ROOT));
    }

    static Start start(@Nullable Object start) {
        if (start == null || start.equals("latest")) {
            return Start.latest();
        }
        if (start.equals("snapshot")) {
            return Start.snapshot();
        }
        if (start.equals("earliest")) {
            return Start.earliest();
        }
        Document place = (Document) start;
        String kind = place.keySet().iterator().next();
        return switch (kind) {
            case "position" -> Start.after(Position.of(bytes(place, kind)));
            case "resume_after" -> Start.resumeAfter(new RawBsonDocument(bytes(place, kind)));
            case "start_after" -> Start.startAfter(new RawBsonDocument(bytes(place, kind)));
            case "operation_time" -> {
                List<Number> time = place.getList(kind, Number.class);
                yield Start.atOperationTime(
                        new BsonTimestamp(time.get(0).intValue(), time.get(1).intValue()));
            }
            case "time" ->
                Start.atTime(OffsetDateTime.parse(place.getString(kind)).toInstant());
            default -> throw new IllegalArgumentException("no start " + kind);
        };
    }

    static void options(SessionOptions.Builder builder, Document options) {
        for (String name : options.keySet()) {
            Object value = options.get(name);
            switch (name) {
                case "window_events" -> builder.windowEvents(number(value).intValue());
                case "window_bytes" -> builder.windowBytes(number(value).longValue());
                case "message_bytes_max" ->
                    builder.messageBytesMax(number(value).intValue());
                case "heartbeat_s" -> builder.heartbeat(seconds(value));
                case "ack_interval_s" -> builder.ackInterval(seconds(value));
                case "open_timeout_s" -> builder.openTimeout(seconds(value));
                case "reconnect_timeout_s" -> builder.reconnectTimeout(value == null ? null : seconds(value));
                case "close_timeout_s" -> builder.closeTimeout(seconds(value));
                case "format" -> builder.format(Format.valueOf(((String) value).toUpperCase(Locale.ROOT)));
                case "backoff_first_s", "backoff_most_s" -> {}
                default -> throw new IllegalArgumentException("no option " + name);
            }
        }
        builder.backoff(seconds(options.get("backoff_first_s", 0.2)), seconds(options.get("backoff_most_s", 10.0)));
    }

    static Duration seconds(Object value) {
        return Duration.ofNanos((long) (number(value).doubleValue() * 1e9));
    }

    private static Number number(Object value) {
        return (Number) value;
    }

    private static byte[] bytes(Document place, String kind) {
        return Base64.getDecoder().decode(place.getString(kind));
    }

    private static @Nullable Path path(Document tls, String name) {
        String path = tls.getString(name);
        return path == null ? null : Path.of(path);
    }
}
