package dev.feedmux.support;

import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import dev.feedmux.v1.Batch;
import dev.feedmux.v1.ClusterTime;
import dev.feedmux.v1.EventFragment;
import dev.feedmux.v1.Limits;
import dev.feedmux.v1.Notice;
import dev.feedmux.v1.Opened;
import dev.feedmux.v1.Progress;
import dev.feedmux.v1.SubscribeResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.bson.BsonBinaryWriter;
import org.bson.Document;
import org.bson.codecs.DocumentCodec;
import org.bson.codecs.EncoderContext;
import org.bson.io.BasicOutputBuffer;

/** Creates messages of a server. Event n has a plausible resume token, whose cluster time is (1000 + n, 1). */
public final class Wire {
    private Wire() {}

    public static SubscribeResponse opened() {
        return opened(Opened.newBuilder());
    }

    public static SubscribeResponse openedAt(int number, long epoch) {
        return opened(Opened.newBuilder()
                .setPosition(position(number))
                .setResumeToken(encode(token(number)))
                .setClusterTime(time(number))
                .setAtLastAcked(true)
                .setEpoch(epoch));
    }

    public static SubscribeResponse openedWithin(long unackedEventsMax) {
        return opened(Opened.newBuilder().setLimits(Limits.newBuilder().setUnackedEventsMax(unackedEventsMax)));
    }

    private static SubscribeResponse opened(Opened.Builder opened) {
        opened.setHeartbeatInterval(Duration.newBuilder().setSeconds(10));
        if (opened.getPosition().isEmpty()) {
            opened.setEpoch(1)
                    .setPosition(position(0))
                    .setResumeToken(encode(token(0)))
                    .setClusterTime(time(0));
        }
        return SubscribeResponse.newBuilder().setOpened(opened).build();
    }

    public static SubscribeResponse batch(long firstSequence, int firstNumber, int count) {
        int last = firstNumber + count - 1;
        return SubscribeResponse.newBuilder()
                .setBatch(Batch.newBuilder()
                        .setFirstDeliverySequence(firstSequence)
                        .setEventCount(count)
                        .setBson(events(firstNumber, count))
                        .setPosition(position(last))
                        .setResumeToken(encode(token(last)))
                        .setClusterTime(time(last)))
                .build();
    }

    public static ByteString events(int firstNumber, int count) {
        return IntStream.range(firstNumber, firstNumber + count)
                .mapToObj(number -> encode(event(number)))
                .reduce(ByteString.EMPTY, ByteString::concat);
    }

    public static SubscribeResponse progress(int number) {
        return SubscribeResponse.newBuilder()
                .setProgress(Progress.newBuilder()
                        .setPosition(position(number))
                        .setResumeToken(encode(token(number)))
                        .setClusterTime(time(number)))
                .build();
    }

    public static SubscribeResponse draining(int seconds) {
        return SubscribeResponse.newBuilder()
                .setNotice(Notice.newBuilder()
                        .setDraining(Notice.Draining.newBuilder()
                                .setDeadline(Duration.newBuilder().setSeconds(seconds))))
                .build();
    }

    /** Event {@code number} in fragments of this many bytes. */
    public static List<SubscribeResponse> fragments(long sequence, int number, int partBytes) {
        ByteString whole = encode(event(number));
        int count = (whole.size() + partBytes - 1) / partBytes;
        List<SubscribeResponse> parts = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            int end = Math.min(whole.size(), (index + 1) * partBytes);
            parts.add(SubscribeResponse.newBuilder()
                    .setEventFragment(EventFragment.newBuilder()
                            .setDeliverySequence(sequence)
                            .setIndex(index)
                            .setCount(count)
                            .setData(whole.substring(index * partBytes, end))
                            .setPosition(index + 1 == count ? position(number) : ByteString.EMPTY))
                    .build());
        }
        return parts;
    }

    public static Document event(int number) {
        return new Document("_id", token(number))
                .append("operationType", "insert")
                .append("n", number);
    }

    public static Document token(int number) {
        return new Document("_data", String.format("82%08X0000000129295A1004", 1000 + number));
    }

    public static ByteString position(int number) {
        return ByteString.copyFromUtf8("P" + number);
    }

    public static ClusterTime time(int number) {
        return ClusterTime.newBuilder()
                .setSeconds(1000 + number)
                .setIncrement(1)
                .build();
    }

    public static ByteString encode(Document document) {
        BasicOutputBuffer buffer = new BasicOutputBuffer();
        try (BsonBinaryWriter writer = new BsonBinaryWriter(buffer)) {
            new DocumentCodec()
                    .encode(writer, document, EncoderContext.builder().build());
        }
        return ByteString.copyFrom(buffer.toByteArray());
    }
}
