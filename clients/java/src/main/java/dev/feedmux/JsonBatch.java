package dev.feedmux;

import dev.feedmux.errors.ProtocolException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.List;
import org.bson.BsonDocument;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.jspecify.annotations.Nullable;

/** A batch of extended JSON texts. */
final class JsonBatch extends Batch {
    private final List<String> texts;
    private final int[] bytes;
    private final long sizeBytes;

    JsonBatch(List<String> texts, FeedPosition feedPosition, @Nullable Instant readTime) {
        super(texts.size(), feedPosition, readTime);
        this.texts = texts;
        bytes = texts.stream()
                .mapToInt(text -> text.getBytes(StandardCharsets.UTF_8).length)
                .toArray();
        long sum = 0;
        for (int each : bytes) {
            sum += each;
        }
        sizeBytes = sum;
    }

    @Override
    public long sizeBytes() {
        return sizeBytes;
    }

    @Override
    RawBsonDocument bson(int index) {
        try {
            BsonDocument document = ExtendedJson.parse(texts.get(index));
            return new RawBsonDocument(Documents.encode(document).toByteArray());
        } catch (RuntimeException error) {
            ProtocolException told =
                    new ProtocolException("an event cannot be decoded from its extended JSON; use Format.BSON");
            told.initCause(error);
            throw told;
        }
    }

    @Override
    Document document(int index) {
        return Documents.decode(bson(index));
    }

    @Override
    String json(int index) {
        return texts.get(index);
    }

    @Override
    int eventBytes(int index) {
        return bytes[index];
    }

    @Override
    @Nullable
    ByteBuffer token(int index) {
        return Tokens.idOf(texts.get(index));
    }

    @Override
    Batch part(int first, int end) {
        return numberedLike(new JsonBatch(texts.subList(first, end), feedPositionOfPart(end), readAt()), first);
    }
}
