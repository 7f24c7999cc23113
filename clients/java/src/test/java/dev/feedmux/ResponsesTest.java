package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.protobuf.ByteString;
import com.google.protobuf.UnknownFieldSet;
import dev.feedmux.errors.ProtocolException;
import dev.feedmux.support.Wire;
import dev.feedmux.v1.ExplainResponse;
import dev.feedmux.v1.SubscribeResponse;
import java.time.Duration;
import java.util.List;
import java.util.stream.Stream;
import org.bson.BsonTimestamp;
import org.bson.Document;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

final class ResponsesTest {
    private final Responses responses = new Responses(false);

    @Test
    void aBatchIsReadInPlace() {
        Batch batch = delivery(Wire.batch(4, 7, 3)).batch();
        assertEquals(3, batch.size());
        assertEquals(Wire.event(9), batch.event(2).document());
        assertEquals(
                Wire.event(8).getString("operationType"),
                batch.event(1).bson().getString("operationType").getValue());
        assertEquals(new BsonTimestamp(1009, 1), batch.clusterTime());
        assertEquals(Wire.token(8), Document.parse(batch.event(1).resumeToken().toJson()));
    }

    @Test
    void fragmentsAreJoined() {
        List<SubscribeResponse> parts = Wire.fragments(3, 5, 20);
        for (SubscribeResponse part : parts.subList(0, parts.size() - 1)) {
            assertNull(responses.read(part.toByteArray()));
        }
        Response.Delivery delivery = delivery(parts.get(parts.size() - 1));
        assertEquals(3, delivery.firstSequence());
        assertEquals(Wire.event(5), delivery.batch().event(0).document());
    }

    @Test
    void anUnfinishedEventIsForgottenWithItsStream() {
        responses.read(Wire.fragments(1, 1, 20).get(0).toByteArray());
        responses.reset();
        assertEquals(1, delivery(Wire.batch(1, 1, 1)).batch().size());
    }

    @Test
    void somethingBetweenFragmentsIsAViolation() {
        responses.read(Wire.fragments(1, 1, 20).get(0).toByteArray());
        assertThrows(ProtocolException.class, () -> read(Wire.progress(1)));
    }

    @Test
    void fragmentsOutOfOrderAreAViolation() {
        List<SubscribeResponse> parts = Wire.fragments(1, 1, 20);
        read(parts.get(0));
        assertThrows(ProtocolException.class, () -> read(parts.get(2)));
    }

    @ParameterizedTest
    @MethodSource
    void whatAServerMustNotSend(ByteString message) {
        assertThrows(ProtocolException.class, () -> responses.read(message.toByteArray()));
    }

    static Stream<ByteString> whatAServerMustNotSend() {
        dev.feedmux.v1.Batch two = Wire.batch(1, 1, 2).getBatch();
        ByteString bytes = two.getBson();
        return Stream.of(
                        two.toBuilder().setEventCount(0),
                        two.toBuilder().setEventCount(1),
                        two.toBuilder().setEventCount(3),
                        two.toBuilder().setEventCount(Integer.MAX_VALUE),
                        two.toBuilder().setBson(bytes.substring(0, bytes.size() - 1)),
                        two.toBuilder().setBson(bytes.concat(ByteString.copyFrom(new byte[] {1, 0, 0, 0}))),
                        two.toBuilder().setBson(ByteString.copyFrom(new byte[] {-1, -1, -1, -1, 0, 9, 9, 9, 9, 9})),
                        two.toBuilder().clearBson())
                .map(batch ->
                        SubscribeResponse.newBuilder().setBatch(batch).build().toByteString())
                .flatMap(message -> Stream.of(message, message.substring(0, message.size() - 3)));
    }

    @Test
    void whatIsNotKnownIsIgnored() {
        UnknownFieldSet newer = UnknownFieldSet.newBuilder()
                .addField(99, UnknownFieldSet.Field.newBuilder().addVarint(1).build())
                .build();
        assertNull(read(SubscribeResponse.newBuilder().setUnknownFields(newer).build()));
        assertNull(read(SubscribeResponse.newBuilder()
                .setNotice(dev.feedmux.v1.Notice.newBuilder().setUnknownFields(newer))
                .build()));
        SubscribeResponse batch = Wire.batch(1, 1, 1);
        SubscribeResponse widened = batch.toBuilder()
                .setBatch(batch.getBatch().toBuilder().setUnknownFields(newer))
                .build();
        assertEquals(1, delivery(widened).batch().size());
    }

    @Test
    void aSkippedNoticeHasBothPlaces() {
        SubscribeResponse message = SubscribeResponse.newBuilder()
                .setNotice(dev.feedmux.v1.Notice.newBuilder()
                        .setSkipped(dev.feedmux.v1.Notice.Skipped.newBuilder()
                                .setFrom(Wire.time(1))
                                .setTo(Wire.time(5))
                                .setFromPosition(Wire.position(1))
                                .setToPosition(Wire.position(5))))
                .build();
        Notice.Skipped expected = new Notice.Skipped(
                new BsonTimestamp(1001, 1),
                new BsonTimestamp(1005, 1),
                Position.of(Wire.position(1)),
                Position.of(Wire.position(5)));
        assertEquals(new Response.Told(expected), read(message));
        assertEquals(
                "another session or a seek moved the stored position from 1001.1 to 1005.1: this session does not deliver"
                        + " the events in between",
                expected.toString());
    }

    @Test
    void aNoticeSaysHowFarACopyIs() {
        dev.feedmux.v1.SnapshotStatus running = dev.feedmux.v1.SnapshotStatus.newBuilder()
                .setState(dev.feedmux.v1.SnapshotStatus.State.STATE_RUNNING)
                .setDocuments(3)
                .setBytes(300)
                .setDocumentsEstimated(10)
                .setRemaining(Messages.duration(Duration.ofMillis(1_500)))
                .setReadTime(Wire.time(1))
                .setNamespace("shop.orders")
                .setGeneration(7)
                .build();
        Notice.SnapshotProgress expected = new Notice.SnapshotProgress(
                new SnapshotStatus(3, 300, 10, Duration.ofMillis(1_500), new BsonTimestamp(1001, 1), "shop.orders", 7));
        SubscribeResponse message = SubscribeResponse.newBuilder()
                .setNotice(dev.feedmux.v1.Notice.newBuilder().setSnapshot(running))
                .build();
        assertEquals(new Response.Told(expected), read(message));
        assertEquals("documents copied so far: 3 of about 10", expected.toString());
    }

    @Test
    void anExplanationSaysWhatACopyWouldRead() {
        ExplainResponse message =
                ExplainResponse.newBuilder().setDocumentsEstimated(5).build();
        assertEquals(5, Messages.explanation(message).documentsEstimated());
    }

    @Test
    void theIdNeedNotBeFirst() {
        Document moved = new Document("operationType", "insert").append("_id", Wire.token(6));
        Batch batch = BsonBatch.over(Wire.encode(moved), 1, FeedPosition.NONE, null);
        assertEquals(Wire.token(6), Document.parse(batch.event(0).resumeToken().toJson()));
        Batch without = BsonBatch.over(Wire.encode(new Document("a", 1)), 1, FeedPosition.NONE, null);
        assertNull(without.event(0).resumeToken());
    }

    @Test
    void jsonTexts() {
        Responses json = new Responses(true);
        String text = "{\"_id\": {\"_data\": \"82\"}, \"é\": {\"$numberLong\": \"7\"}}";
        dev.feedmux.v1.Batch batch = dev.feedmux.v1.Batch.newBuilder()
                .setFirstDeliverySequence(1)
                .setEventCount(1)
                .addJson(text)
                .build();
        Response read =
                json.read(SubscribeResponse.newBuilder().setBatch(batch).build().toByteArray());
        Batch texts = assertInstanceOf(Response.Delivery.class, read).batch();
        assertEquals(text, texts.event(0).json());
        assertEquals(7L, texts.event(0).document().get("é"));
        assertEquals(text.length() + 1, texts.sizeBytes());
        assertEquals("82", texts.event(0).resumeToken().getString("_data").getValue());
    }

    private Response read(SubscribeResponse message) {
        return responses.read(message.toByteArray());
    }

    private Response.Delivery delivery(SubscribeResponse message) {
        return assertInstanceOf(Response.Delivery.class, read(message));
    }
}
