package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import dev.feedmux.errors.ProtocolException;
import dev.feedmux.support.Wire;
import java.util.List;
import org.bson.BsonDateTime;
import org.bson.BsonDocument;
import org.bson.Document;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

final class BatchTest {
    @ParameterizedTest
    @ValueSource(longs = {253402300800000L, -62167219200001L, Long.MAX_VALUE, Long.MIN_VALUE})
    void anyDateIsTheSameInJsonAndBson(long millis) {
        Document event = new Document("at", new BsonDateTime(millis)).append("_id", Wire.token(1));
        String text = "{\"at\": {\"$date\": {\"$numberLong\": \"" + millis + "\"}}, \"_id\": "
                + Wire.token(1).toJson() + "}";
        for (Batch batch : List.of(
                new JsonBatch(List.of(text), FeedPosition.NONE, null),
                BsonBatch.over(Wire.encode(event), 1, FeedPosition.NONE, null))) {
            Event found = batch.event(0);
            assertEquals(event.toBsonDocument(), found.document().toBsonDocument());
            assertEquals(new BsonDateTime(millis), found.bson().get("at"));
            assertEquals(event.toBsonDocument(), BsonDocument.parse(found.json()));
            assertEquals(Wire.token(1).toBsonDocument(), found.resumeToken());
        }
    }

    @Test
    void aTextThatCannotBeDecodedIsAnErrorThatNamesTheWayOut() {
        for (String text : List.of(
                "",
                "{",
                "[]",
                "5",
                "null",
                "{\"a\": 1} x",
                "{\"a\\u0000b\": 1}",
                "{\"n\": 100000000000000000000}",
                "{\"a\": \"x",
                "{\"a\":".repeat(5000) + "1" + "}".repeat(5000))) {
            Event event = new JsonBatch(List.of(text), FeedPosition.NONE, null).event(0);
            for (Executable decode : List.<Executable>of(event::document, event::bson)) {
                ProtocolException error = assertThrows(ProtocolException.class, decode, text);
                assertTrue(error.getMessage().contains("use Format.BSON"), error.getMessage());
            }
            assertEquals(text, event.json());
        }
    }

    @Test
    void anEventThatCannotBeDecodedFailsAlone() {
        ByteString undecodable = ByteString.copyFrom(new byte[] {9, 0, 0, 0, 77, 'x', 0, 0, 0});
        ByteString data = Wire.events(1, 1).concat(undecodable).concat(Wire.events(3, 1));
        Batch bson = BsonBatch.over(data, 3, FeedPosition.NONE, null);
        Batch json = new JsonBatch(
                List.of(
                        Wire.event(1).toJson(),
                        "{\"_id\": never}",
                        Wire.event(3).toJson()),
                FeedPosition.NONE,
                null);
        for (Batch batch : List.of(bson, json)) {
            assertThrows(RuntimeException.class, () -> batch.event(1).document());
            assertThrows(IndexOutOfBoundsException.class, () -> batch.event(-1));
            assertThrows(IndexOutOfBoundsException.class, () -> batch.event(3));
            for (int index : new int[] {0, 2}) {
                assertEquals(Wire.event(index + 1), batch.event(index).document());
                BsonDocument token = batch.event(index).resumeToken();
                assertEquals(Wire.token(index + 1).toBsonDocument(), token);
            }
        }
    }
}
