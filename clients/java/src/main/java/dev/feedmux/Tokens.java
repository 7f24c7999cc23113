package dev.feedmux;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Set;
import java.util.regex.Pattern;
import org.bson.BSONException;
import org.bson.BsonDocument;
import org.bson.BsonTimestamp;
import org.bson.BsonType;
import org.bson.BsonValue;
import org.bson.RawBsonDocument;
import org.jspecify.annotations.Nullable;

/** Reads resume tokens as far as the client needs: to identify events, and to see which of two is later. */
final class Tokens {
    private static final byte[] ID_FIRST = {3, '_', 'i', 'd', 0};
    private static final int ID_AT = Integer.BYTES + ID_FIRST.length;
    /** The prefix of a timestamp. The seconds and the increment follow it, eight hexadecimal digits each. */
    private static final String TIME_FOLLOWS = "82";

    private static final Set<String> DATA = Set.of("_data");
    private static final Set<String> DATA_AND_TYPES = Set.of("_data", "_typeBits");
    private static final Pattern HEX = Pattern.compile("[0-9A-Fa-f]+");

    private static final int TIME_END = TIME_FOLLOWS.length() + 16;

    private Tokens() {}

    /**
     * Returns the resume token of an event, its {@code _id}; null if {@code _id} is not a document. The token need not
     * be the first field: a pipeline with $replaceRoot moves it.
     */
    static @Nullable ByteBuffer idOf(RawBsonDocument event) {
        ByteBuffer bytes = event.getByteBuffer().asNIO().slice().order(ByteOrder.LITTLE_ENDIAN);
        if (startsWithId(bytes)) {
            int size = bytes.getInt(ID_AT);
            if (size > 0 && size <= bytes.limit() - ID_AT) {
                return bytes.slice(ID_AT, size);
            }
        }
        BsonValue id = event.get("_id");
        return id instanceof RawBsonDocument found
                ? found.getByteBuffer().asNIO().slice()
                : null;
    }

    /**
     * Returns the resume token of an event in extended JSON, its {@code _id}, as exactly the BSON that MongoDB sent.
     * Null if {@code _id} is not a resume token. The fields after {@code _id} are not read.
     *
     * <p>A token is {@code {_data: <hex>}} or {@code {_data: <hex>, _typeBits: <binary>}}. MongoDB adds
     * {@code _typeBits} where the hex alone does not determine the type of a number: int64, double and decimal
     * {@code _id}s.
     */
    static @Nullable ByteBuffer idOf(String event) {
        BsonDocument token = jsonId(event);
        if (token == null || !token.keySet().equals(token.containsKey("_typeBits") ? DATA_AND_TYPES : DATA)) {
            return null;
        }
        BsonValue data = token.get("_data");
        BsonValue types = token.get("_typeBits");
        boolean isToken = data.isString()
                && HEX.matcher(data.asString().getValue()).matches()
                && (types == null || types.isBinary());
        return isToken ? Documents.encode(token).asReadOnlyByteBuffer() : null;
    }

    private static @Nullable BsonDocument jsonId(String event) {
        BsonValue id = ExtendedJson.member(event, "_id");
        return id != null && id.isDocument() ? id.asDocument() : null;
    }

    static @Nullable RawBsonDocument document(@Nullable ByteBuffer key) {
        if (key == null) {
            return null;
        }
        byte[] copy = new byte[key.remaining()];
        key.duplicate().get(copy);
        return new RawBsonDocument(copy);
    }

    /**
     * Returns the cluster time in a resume token. Null if the token is not MongoDB's hexadecimal key string that begins
     * with a timestamp; such a token is not compared.
     */
    static @Nullable BsonTimestamp timeOf(@Nullable BsonDocument token) {
        if (token == null) {
            return null;
        }
        try {
            BsonValue data = token.get("_data");
            if (data == null || data.getBsonType() != BsonType.STRING) {
                return null;
            }
            String text = data.asString().getValue();
            if (!text.startsWith(TIME_FOLLOWS) || text.length() < TIME_END) {
                return null;
            }
            return new BsonTimestamp(Long.parseUnsignedLong(text, TIME_FOLLOWS.length(), TIME_END, 16));
        } catch (BSONException | NumberFormatException error) {
            return null;
        }
    }

    private static boolean startsWithId(ByteBuffer bytes) {
        return bytes.limit() >= ID_AT + Integer.BYTES
                && bytes.slice(Integer.BYTES, ID_FIRST.length).equals(ByteBuffer.wrap(ID_FIRST));
    }
}
