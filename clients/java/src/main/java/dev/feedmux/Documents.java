package dev.feedmux;

import com.google.protobuf.ByteString;
import java.nio.charset.StandardCharsets;
import org.bson.BsonBinaryWriter;
import org.bson.BsonDocument;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.bson.codecs.BsonDocumentCodec;
import org.bson.codecs.DocumentCodec;
import org.bson.codecs.EncoderContext;
import org.bson.io.BasicOutputBuffer;
import org.jspecify.annotations.Nullable;

/** Converts BSON to and from bytes. */
final class Documents {
    private static final BsonDocumentCodec BSON = new BsonDocumentCodec();
    private static final DocumentCodec MAP = new DocumentCodec();

    private Documents() {}

    /**
     * Returns the bytes of a document; for a raw document, its original bytes, so that a token is sent back unchanged.
     */
    static ByteString encode(BsonDocument document) {
        if (document instanceof RawBsonDocument raw) {
            return ByteString.copyFrom(raw.getByteBuffer().asNIO());
        }
        BasicOutputBuffer buffer = new BasicOutputBuffer();
        try (BsonBinaryWriter writer = new BsonBinaryWriter(buffer)) {
            BSON.encode(writer, document, EncoderContext.builder().build());
        }
        return ByteString.copyFrom(buffer.toByteArray());
    }

    /**
     * Throws IllegalArgumentException for a text with half of a surrogate pair, such as one that was cut within an emoji.
     * UTF-8 has no such text, and protobuf sends another one: another name, another condition. (BSON has the half, which
     * the server rejects.)
     */
    static void checkText(@Nullable String text, String what) {
        if (text != null && !StandardCharsets.UTF_8.newEncoder().canEncode(text)) {
            throw new IllegalArgumentException(what + " has half of a surrogate pair, which UTF-8 does not have");
        }
    }

    static Document decode(RawBsonDocument document) {
        return document.decode(MAP);
    }

    /** Returns the document in a field of a message; null if the field is empty. */
    static @Nullable RawBsonDocument raw(ByteString bytes) {
        return bytes.isEmpty() ? null : new RawBsonDocument(bytes.toByteArray());
    }
}
