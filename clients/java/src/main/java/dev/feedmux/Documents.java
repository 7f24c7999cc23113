package dev.feedmux;

import com.google.protobuf.ByteString;
import org.bson.BsonBinaryWriter;
import org.bson.BsonDocument;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.bson.codecs.BsonDocumentCodec;
import org.bson.codecs.DocumentCodec;
import org.bson.codecs.EncoderContext;
import org.bson.io.BasicOutputBuffer;
import org.jspecify.annotations.Nullable;

/** BSON to and from bytes. */
final class Documents {
    private static final BsonDocumentCodec BSON = new BsonDocumentCodec();
    private static final DocumentCodec MAP = new DocumentCodec();

    private Documents() {}

    /** The bytes of a document: those it was made of where it is raw, so that a token goes back bit for bit. */
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

    static Document decode(RawBsonDocument document) {
        return document.decode(MAP);
    }

    /** A document that a message carries; null where it carries none. */
    static @Nullable RawBsonDocument raw(ByteString bytes) {
        return bytes.isEmpty() ? null : new RawBsonDocument(bytes.toByteArray());
    }
}
