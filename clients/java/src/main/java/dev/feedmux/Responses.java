package dev.feedmux;

import com.google.protobuf.ByteString;
import com.google.protobuf.CodedInputStream;
import com.google.protobuf.UnsafeByteOperations;
import dev.feedmux.errors.ProtocolException;
import dev.feedmux.v1.EventFragment;
import dev.feedmux.v1.SubscribeResponse;
import java.io.IOException;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.List;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/**
 * Reads the messages of one session and joins fragments. The events of a batch are not copied: they stay in the bytes
 * of the message. Unknown fields and kinds are ignored.
 */
final class Responses {
    private final boolean json;
    private ByteString joined = ByteString.EMPTY;
    private int parts;
    private long fragmentSequence;
    private int fragmentCount;

    Responses(boolean json) {
        this.json = json;
    }

    /** Begins a new stream, which voids unfinished fragments. */
    void reset() {
        joined = ByteString.EMPTY;
        parts = 0;
    }

    /** Reads a message; null for an unknown kind or a part of an unfinished event. Throws ProtocolException. */
    @Nullable
    Response read(byte[] message) {
        SubscribeResponse response = parse(message);
        if (response.hasEventFragment()) {
            return join(response.getEventFragment());
        }
        Response value = switch (response.getMessageCase()) {
            case BATCH -> delivery(response.getBatch());
            case PROGRESS -> {
                dev.feedmux.v1.Progress progress = response.getProgress();
                yield new Response.Progress(feedPosition(
                        progress.getPosition(), progress.getResumeToken(), time(progress.getClusterTime())));
            }
            case COMMITTED ->
                new Response.Committed(
                        response.getCommitted().getDeliverySequence(),
                        Position.of(response.getCommitted().getPosition()));
            case OPENED -> opened(response.getOpened());
            case NOTICE -> told(response.getNotice());
            case EVENT_FRAGMENT, MESSAGE_NOT_SET -> null;
        };
        if (parts > 0 && value != null) {
            throw new ProtocolException("a message came between the fragments of an event");
        }
        return value;
    }

    private static SubscribeResponse parse(byte[] message) {
        try {
            CodedInputStream input = UnsafeByteOperations.unsafeWrap(message).newCodedInput();
            input.enableAliasing(true);
            return SubscribeResponse.parseFrom(input);
        } catch (IOException error) {
            throw new ProtocolException("a message cannot be decoded: " + error.getMessage());
        }
    }

    private Response.Delivery delivery(dev.feedmux.v1.Batch batch) {
        int count = batch.getEventCount();
        if (count < 1) {
            throw new ProtocolException("a batch without events");
        }
        FeedPosition feedPosition =
                feedPosition(batch.getPosition(), batch.getResumeToken(), time(batch.getClusterTime()));
        Instant readTime = batch.hasReadTime() ? Messages.instant(batch.getReadTime()) : null;
        if (json && batch.getJsonCount() != count) {
            throw new ProtocolException("a batch of " + count + " events holds " + batch.getJsonCount() + " texts");
        }
        Batch events = json
                ? new JsonBatch(List.copyOf(batch.getJsonList()), feedPosition, readTime)
                : BsonBatch.over(batch.getBson(), count, feedPosition, readTime);
        events.markSnapshot(batch.getSnapshot());
        return new Response.Delivery(batch.getFirstDeliverySequence(), events);
    }

    private Response.@Nullable Delivery join(EventFragment part) {
        boolean follows = part.getIndex() == parts
                && part.getCount() > part.getIndex()
                && (parts == 0 || (part.getDeliverySequence() == fragmentSequence && part.getCount() == fragmentCount));
        if (!follows) {
            throw new ProtocolException("fragments of an event out of order");
        }
        fragmentSequence = part.getDeliverySequence();
        fragmentCount = part.getCount();
        joined = joined.concat(part.getData());
        parts++;
        if (parts < fragmentCount) {
            return null;
        }
        ByteString whole = joined;
        reset();
        FeedPosition feedPosition =
                feedPosition(part.getPosition(), part.getResumeToken(), time(part.getClusterTime()));
        Batch batch = json
                ? new JsonBatch(List.of(text(whole)), feedPosition, null)
                : BsonBatch.over(whole, 1, feedPosition, null);
        batch.markSnapshot(part.getSnapshot());
        return new Response.Delivery(fragmentSequence, batch);
    }

    private static String text(ByteString bytes) {
        try {
            return StandardCharsets.UTF_8
                    .newDecoder()
                    .decode(bytes.asReadOnlyByteBuffer())
                    .toString();
        } catch (CharacterCodingException error) {
            throw new ProtocolException("a fragmented event is not UTF-8");
        }
    }

    private static Response.Opened opened(dev.feedmux.v1.Opened opened) {
        dev.feedmux.v1.Limits limits = opened.getLimits();
        return new Response.Opened(
                opened.getEpoch(),
                feedPosition(opened.getPosition(), opened.getResumeToken(), time(opened.getClusterTime())),
                opened.getAtLastAcked(),
                Messages.duration(opened.getHeartbeatInterval()),
                limits.getCreditEventsMax(),
                limits.getCreditBytesMax(),
                limits.getUnackedEventsMax(),
                limits.getMessageBytesMax(),
                opened.getRoutingKey(),
                opened.hasSnapshot() ? Messages.snapshot(opened.getSnapshot()) : null);
    }

    private static Response.@Nullable Told told(dev.feedmux.v1.Notice notice) {
        Notice value = switch (notice.getKindCase()) {
            case DRAINING ->
                new Notice.Draining(
                        Messages.duration(notice.getDraining().getDeadline()),
                        Position.of(notice.getDraining().getPosition()));
            case REWOUND ->
                new Notice.Rewound(
                        Messages.timestamp(notice.getRewound().getFrom()),
                        Messages.timestamp(notice.getRewound().getTo()));
            case HISTORY_AT_RISK ->
                new Notice.HistoryAtRisk(
                        Messages.duration(notice.getHistoryAtRisk().getRemaining()));
            case GAP ->
                new Notice.Gap(
                        Messages.timestamp(notice.getGap().getFrom()),
                        Messages.timestamp(notice.getGap().getTo()),
                        notice.getGap().getReason());
            case DEGRADED ->
                new Notice.Degraded(
                        notice.getDegraded().getDependency(),
                        notice.getDegraded().getUnavailable());
            case SKIPPED ->
                new Notice.Skipped(
                        Messages.timestamp(notice.getSkipped().getFrom()),
                        Messages.timestamp(notice.getSkipped().getTo()),
                        Position.of(notice.getSkipped().getFromPosition()),
                        Position.of(notice.getSkipped().getToPosition()));
            case UNACKNOWLEDGED ->
                new Notice.Unacknowledged(notice.getUnacknowledged().getEvents());
            case SNAPSHOT -> snapshot(notice.getSnapshot());
            case KIND_NOT_SET -> null;
        };
        return value == null ? null : new Response.Told(value);
    }

    private static @Nullable Notice snapshot(dev.feedmux.v1.SnapshotStatus status) {
        SnapshotStatus value = Messages.snapshot(status);
        return switch (status.getState()) {
            case STATE_RUNNING -> new Notice.SnapshotProgress(value);
            case STATE_DONE ->
                new Notice.SnapshotComplete(value.documents(), value.bytes(), value.readTime(), value.generation());
            case STATE_UNSPECIFIED, UNRECOGNIZED -> null;
        };
    }

    private static FeedPosition feedPosition(ByteString position, ByteString token, @Nullable BsonTimestamp time) {
        return new FeedPosition(Position.of(position), Documents.raw(token), time);
    }

    private static @Nullable BsonTimestamp time(dev.feedmux.v1.ClusterTime time) {
        return time.getSeconds() == 0 && time.getIncrement() == 0 ? null : Messages.timestamp(time);
    }
}
