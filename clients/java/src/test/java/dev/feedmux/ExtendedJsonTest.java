package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.bson.BsonArray;
import org.bson.BsonDateTime;
import org.bson.BsonDocument;
import org.bson.BsonDouble;
import org.bson.BsonInt64;
import org.bson.BsonString;
import org.bson.BsonValue;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.junit.jupiter.api.Test;

final class ExtendedJsonTest {
    @Test
    void canonicalTextIsTheBytesOfItsDocument() throws IOException {
        BsonArray samples = BsonArray.parse(Files.readString(Path.of("..", "testdata", "extended_json.json")));
        for (BsonValue each : samples) {
            BsonDocument sample = each.asDocument();
            String name = sample.getString("name").getValue();
            String wanted = sample.getString("bson").getValue();
            Event event =
                    new JsonBatch(List.of(sample.getString("canonical").getValue()), FeedPosition.NONE, null).event(0);
            byte[] bytes = Documents.encode(event.bson()).toByteArray();
            assertEquals(wanted, Base64.getEncoder().encodeToString(bytes), name);
            Document decoded =
                    Documents.decode(new RawBsonDocument(Base64.getDecoder().decode(wanted)));
            assertEquals(decoded.toString(), event.document().toString(), name);
        }
        assertTrue(samples.size() > 100);
    }

    @Test
    void aRelaxedNumberIsNoPartOfAValue() {
        Map<String, BsonValue> values = Map.of(
                "{\"$date\": 9223372036854775807}",
                new BsonDocument("$date", new BsonInt64(Long.MAX_VALUE)),
                "{\"$numberDouble\": 1.0}",
                new BsonDocument("$numberDouble", new BsonDouble(1)),
                "{\"$date\": \"2024-01-02T03:04:05.678Z\"}",
                new BsonDateTime(1704164645678L),
                "{\"$date\": \"2024-02-30T03:04:05Z\"}",
                new BsonDocument("$date", new BsonString("2024-02-30T03:04:05Z")),
                "-0.0",
                new BsonDouble(-0.0),
                "1e+20",
                new BsonDouble(1e20));
        values.forEach((text, wanted) ->
                assertEquals(new BsonDocument("q", wanted), ExtendedJson.parse(" {\"q\" : " + text + " } "), text));
    }
}
