package dev.feedmux;

import com.google.protobuf.ByteString;
import com.google.protobuf.Timestamp;
import dev.feedmux.CreditWindow.Grant;
import dev.feedmux.v1.Ack;
import dev.feedmux.v1.Close;
import dev.feedmux.v1.ClusterTime;
import dev.feedmux.v1.Credit;
import dev.feedmux.v1.ExplainResponse;
import dev.feedmux.v1.LastAcked;
import dev.feedmux.v1.Pipeline;
import dev.feedmux.v1.ResolvePositionResponse;
import dev.feedmux.v1.SubscribeRequest;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonTimestamp;
import org.bson.BsonValue;
import org.jspecify.annotations.Nullable;

/**
 * Converts the client's own values to and from protobuf. Most generated messages are used only here and in
 * {@link Responses}.
 */
final class Messages {
    static final SubscribeRequest CLOSE =
            SubscribeRequest.newBuilder().setClose(Close.getDefaultInstance()).build();

    private static final int ROUTE_BYTES = 8;
    private static final Pattern WORD = Pattern.compile("_([a-z])");

    private Messages() {}

    static dev.feedmux.v1.Feed feed(Feed feed, String defaultSource) {
        dev.feedmux.v1.Feed.Builder message = dev.feedmux.v1.Feed.newBuilder()
                .setSource(feed.source() == null ? defaultSource : feed.source())
                .setDatabase(orEmpty(feed.database()))
                .setCollection(orEmpty(feed.collection()))
                .setFullDocument(mongoName(feed.fullDocument()))
                .setFullDocumentBeforeChange(mongoName(feed.fullDocumentBeforeChange()))
                .setShowExpandedEvents(feed.showExpandedEvents())
                .setBatchSize(feed.batchSize())
                .setMaxAwaitTimeMs(feed.maxAwaitTimeMs())
                .setReadPreference(mongoName(feed.readPreference()))
                .setReadConcern(orEmpty(feed.readConcern()))
                .setMatchCollectionUuidForUpdateLookup(feed.matchCollectionUuidForUpdateLookup())
                .addAllExtraOptions(feed.extraOptions());
        if (feed.pipelineJson() != null) {
            message.setPipeline(Pipeline.newBuilder().setExtendedJson(feed.pipelineJson()));
        } else if (!feed.pipeline().isEmpty()) {
            BsonDocument stages = new BsonDocument("pipeline", new BsonArray(feed.pipeline()));
            message.setPipeline(Pipeline.newBuilder().setBson(Documents.encode(stages)));
        }
        if (feed.collation() != null) {
            message.setCollation(Documents.encode(feed.collation()));
        }
        if (feed.comment() != null) {
            message.setComment(Documents.encode(new BsonDocument("comment", feed.comment())));
        }
        return message.build();
    }

    /**
     * Returns the metadata {@code x-feedmux-route} of a feed, computed in advance: it equals
     * {@code Opened.routing_key}.
     */
    static String route(dev.feedmux.v1.Feed feed) {
        String namespace = feed.getDatabase().isEmpty() ? "*" : feed.getDatabase();
        if (!feed.getCollection().isEmpty()) {
            namespace += "." + feed.getCollection();
        }
        byte[] named = (feed.getSource() + "/" + namespace).getBytes(StandardCharsets.UTF_8);
        try {
            byte[] hash = MessageDigest.getInstance("SHA-256").digest(named);
            return HexFormat.of().formatHex(hash, 0, ROUTE_BYTES);
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    static Feed feed(dev.feedmux.v1.Feed message) {
        BsonDocument comment = Documents.raw(message.getComment());
        return new Feed(
                message.getSource(),
                orNull(message.getDatabase()),
                orNull(message.getCollection()),
                stages(message.getPipeline()),
                orNull(message.getPipeline().getExtendedJson()),
                fromMongo(FullDocument.class, message.getFullDocument()),
                fromMongo(FullDocumentBeforeChange.class, message.getFullDocumentBeforeChange()),
                message.getShowExpandedEvents(),
                Documents.raw(message.getCollation()),
                comment == null ? null : comment.get("comment"),
                message.getBatchSize(),
                message.getMaxAwaitTimeMs(),
                fromMongo(ReadPreference.class, message.getReadPreference()),
                orNull(message.getReadConcern()),
                message.getMatchCollectionUuidForUpdateLookup(),
                message.getExtraOptionsList());
    }

    static dev.feedmux.v1.Start start(Start start) {
        dev.feedmux.v1.Start.Builder message = dev.feedmux.v1.Start.newBuilder();
        if (start instanceof Start.After at) {
            message.setPosition(bytes(at.position()));
        } else if (start instanceof Start.ResumeAfter at) {
            message.setResumeAfter(Documents.encode(at.token()));
        } else if (start instanceof Start.StartAfter at) {
            message.setStartAfter(Documents.encode(at.token()));
        } else if (start instanceof Start.AtOperationTime at) {
            message.setStartAtOperationTime(ClusterTime.newBuilder()
                    .setSeconds(at.time().getTime())
                    .setIncrement(at.time().getInc()));
        } else if (start instanceof Start.AtTime at) {
            message.setTime(Timestamp.newBuilder().setSeconds(at.time().getEpochSecond()));
        } else if (start instanceof Start.Snapshot) {
            message.setSnapshot(dev.feedmux.v1.Snapshot.getDefaultInstance());
        } else if (start instanceof Start.Earliest) {
            message.setEarliest(dev.feedmux.v1.Earliest.getDefaultInstance());
        } else {
            // A position that was not found must not mean now.
            Objects.requireNonNull(start, "a start is required");
            message.setLatest(dev.feedmux.v1.Latest.getDefaultInstance());
        }
        return message.build();
    }

    static dev.feedmux.v1.Subscription subscription(
            String name,
            @Nullable Feed feed,
            @Nullable OnInvalidate onInvalidate,
            @Nullable OnHistoryLost onHistoryLost,
            String defaultSource) {
        dev.feedmux.v1.Subscription.Builder message =
                dev.feedmux.v1.Subscription.newBuilder().setName(name);
        if (feed != null) {
            message.setFeed(feed(feed, defaultSource));
        }
        if (onInvalidate != null) {
            message.setOnInvalidate(
                    switch (onInvalidate) {
                        case STOP -> dev.feedmux.v1.OnInvalidate.ON_INVALIDATE_STOP;
                        case CONTINUE -> dev.feedmux.v1.OnInvalidate.ON_INVALIDATE_CONTINUE;
                    });
        }
        if (onHistoryLost != null) {
            message.setOnHistoryLost(
                    switch (onHistoryLost) {
                        case FAIL -> dev.feedmux.v1.OnHistoryLost.ON_HISTORY_LOST_FAIL;
                        case EARLIEST -> dev.feedmux.v1.OnHistoryLost.ON_HISTORY_LOST_EARLIEST;
                        case SNAPSHOT -> dev.feedmux.v1.OnHistoryLost.ON_HISTORY_LOST_SNAPSHOT;
                    });
        }
        return message.build();
    }

    static SubscriptionInfo info(dev.feedmux.v1.Subscription message) {
        boolean goesOn = message.getOnInvalidate() == dev.feedmux.v1.OnInvalidate.ON_INVALIDATE_CONTINUE;
        return new SubscriptionInfo(
                message.getName(),
                feed(message.getFeed()),
                goesOn ? OnInvalidate.CONTINUE : OnInvalidate.STOP,
                switch (message.getOnHistoryLost()) {
                    case ON_HISTORY_LOST_EARLIEST -> OnHistoryLost.EARLIEST;
                    case ON_HISTORY_LOST_SNAPSHOT -> OnHistoryLost.SNAPSHOT;
                    default -> OnHistoryLost.FAIL;
                },
                Position.of(message.getPosition()),
                message.hasClusterTime() ? timestamp(message.getClusterTime()) : null,
                message.hasCreateTime() ? instant(message.getCreateTime()) : null,
                message.hasUpdateTime() ? instant(message.getUpdateTime()) : null,
                message.getEtag(),
                message.getActive(),
                message.getOwner(),
                message.getEpoch(),
                message.hasExpireTime() ? instant(message.getExpireTime()) : null,
                message.getRoutingKey(),
                message.getSnapshot().getState() == dev.feedmux.v1.SnapshotStatus.State.STATE_RUNNING
                        ? snapshot(message.getSnapshot())
                        : null);
    }

    static SnapshotStatus snapshot(dev.feedmux.v1.SnapshotStatus status) {
        return new SnapshotStatus(
                status.getDocuments(),
                status.getBytes(),
                status.getDocumentsEstimated(),
                status.hasRemaining() ? duration(status.getRemaining()) : null,
                status.hasReadTime() ? timestamp(status.getReadTime()) : null,
                status.getNamespace(),
                status.getGeneration());
    }

    static Explanation explanation(ExplainResponse message) {
        ExplainResponse.Refusal refusal = message.getRefusal();
        return new Explanation(
                message.hasRefusal()
                        ? new Explanation.Refusal(refusal.getStatus(), refusal.getReason(), refusal.getMessage())
                        : null,
                message.getPipeline(),
                message.getStreamKey(),
                message.getStreamOpen(),
                message.getImagesList().stream()
                        .map(one -> new Explanation.CollectionImages(
                                one.getDatabase(), one.getCollection(), one.getEnabled(), one.getForGrants()))
                        .toList(),
                message.hasOplogHeadroom() ? duration(message.getOplogHeadroom()) : null,
                message.getWithheldList().stream()
                        .map(one -> new Explanation.Withheld(one.getWhat(), one.getWhy()))
                        .toList(),
                message.getMayBeView(),
                message.getScopeMissing(),
                message.getDocumentsEstimated());
    }

    static ResolvedPosition resolved(ResolvePositionResponse message) {
        return new ResolvedPosition(
                Position.of(message.getPosition()),
                message.hasClusterTime() ? timestamp(message.getClusterTime()) : null,
                message.hasTime() ? instant(message.getTime()) : null);
    }

    static dev.feedmux.v1.Format format(Format format) {
        return switch (format) {
            case BSON -> dev.feedmux.v1.Format.FORMAT_BSON;
            case EXTENDED_JSON_RELAXED -> dev.feedmux.v1.Format.FORMAT_EXTENDED_JSON_RELAXED;
            case EXTENDED_JSON_CANONICAL -> dev.feedmux.v1.Format.FORMAT_EXTENDED_JSON_CANONICAL;
        };
    }

    /** Returns the last acked position: a position if there is one, else the event's token. */
    static LastAcked lastAcked(FeedPosition feedPosition, long epoch) {
        LastAcked.Builder message = LastAcked.newBuilder().setEpoch(epoch);
        if (feedPosition.resumeToken() != null && feedPosition.position().isEmpty()) {
            message.setResumeToken(Documents.encode(feedPosition.resumeToken()));
        } else {
            message.setPosition(bytes(feedPosition.position()));
        }
        return message.build();
    }

    static Credit creditOf(Grant grant) {
        return Credit.newBuilder()
                .setEvents(grant.events())
                .setBytes(grant.bytes())
                .build();
    }

    static SubscribeRequest credit(Grant grant) {
        return SubscribeRequest.newBuilder().setCredit(creditOf(grant)).build();
    }

    static SubscribeRequest ack(long sequence) {
        return SubscribeRequest.newBuilder()
                .setAck(Ack.newBuilder().setDeliverySequence(sequence))
                .build();
    }

    static BsonTimestamp timestamp(ClusterTime time) {
        return new BsonTimestamp(time.getSeconds(), time.getIncrement());
    }

    static Instant instant(Timestamp time) {
        return Instant.ofEpochSecond(time.getSeconds(), time.getNanos());
    }

    static Duration duration(com.google.protobuf.Duration duration) {
        return Durations.capped(Duration.ofSeconds(duration.getSeconds(), duration.getNanos()));
    }

    static com.google.protobuf.Duration duration(Duration duration) {
        return com.google.protobuf.Duration.newBuilder()
                .setSeconds(duration.getSeconds())
                .setNanos(duration.getNano())
                .build();
    }

    static ByteString bytes(Position position) {
        return ByteString.copyFrom(position.toBytes());
    }

    private static List<BsonDocument> stages(Pipeline pipeline) {
        BsonDocument inBson = Documents.raw(pipeline.getBson());
        return inBson == null
                ? List.of()
                : inBson.getArray("pipeline").stream()
                        .map(BsonValue::asDocument)
                        .toList();
    }

    /** Returns MongoDB's name of a value: {@code updateLookup} for UPDATE_LOOKUP. */
    private static String mongoName(@Nullable Enum<?> value) {
        if (value == null) {
            return "";
        }
        Matcher words = WORD.matcher(value.name().toLowerCase(Locale.ROOT));
        return words.replaceAll(word -> word.group(1).toUpperCase(Locale.ROOT));
    }

    /** Returns the value with MongoDB's name; null if there is none. */
    private static <E extends Enum<E>> @Nullable E fromMongo(Class<E> type, String name) {
        return Arrays.stream(type.getEnumConstants())
                .filter(each -> mongoName(each).equals(name))
                .findFirst()
                .orElse(null);
    }

    private static String orEmpty(@Nullable String text) {
        return text == null ? "" : text;
    }

    private static @Nullable String orNull(String text) {
        return text.isEmpty() ? null : text;
    }
}
