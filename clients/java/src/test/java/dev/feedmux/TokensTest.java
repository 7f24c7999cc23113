package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.List;
import org.bson.BsonArray;
import org.bson.BsonDocument;
import org.bson.BsonValue;
import org.bson.RawBsonDocument;
import org.junit.jupiter.api.Test;

/** Resume tokens have the same bytes whether read from BSON or from extended JSON. */
final class TokensTest {
    @Test
    void aTokenIsTheSameBytesInEveryFormat() throws IOException {
        int withTypes = 0;
        for (BsonValue each : testdata("resume_tokens.json")) {
            BsonDocument sample = each.asDocument();
            String id = sample.getString("id").getValue();
            byte[] token = Base64.getDecoder().decode(sample.getString("token").getValue());
            byte[] event = Base64.getDecoder().decode(sample.getString("event").getValue());
            assertArrayEquals(token, bytes(Tokens.idOf(new RawBsonDocument(event))), id);
            for (String format : List.of("canonical", "relaxed")) {
                String text = sample.getString(format).getValue();
                String anywhere = "{\"nested\":{\"_id\":{\"_data\":\"00\"}}," + text.substring(1);
                JsonBatch batch = new JsonBatch(List.of(text, anywhere), FeedPosition.NONE, null);
                for (Event it : batch) {
                    assertArrayEquals(token, bytes(batch.key((int) (it.sequence() - batch.firstSequence()))), id);
                    BsonDocument kept = it.resumeToken();
                    assertTrue(kept != null);
                    assertArrayEquals(token, Documents.encode(kept).toByteArray(), id);
                    assertArrayEquals(token, Documents.encode(kept.clone()).toByteArray(), id);
                }
            }
            withTypes += sample.getString("canonical").getValue().contains("_typeBits") ? 1 : 0;
        }
        assertTrue(withTypes > 10);
    }

    @Test
    void whatIsNoTokenGivesNone() throws IOException {
        for (BsonValue text : testdata("no_tokens.json")) {
            assertNull(Tokens.idOf(text.asString().getValue()), text.toString());
        }
    }

    private static BsonArray testdata(String name) throws IOException {
        return BsonArray.parse(Files.readString(Path.of("..", "testdata", name)));
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] copy = new byte[buffer.remaining()];
        buffer.duplicate().get(copy);
        return copy;
    }
}
