package dev.feedmux;

import org.bson.BsonDocument;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.bson.codecs.Decoder;
import org.jspecify.annotations.Nullable;

/** One change event. */
public final class Event implements Item {
    private final Batch batch;
    private final int index;
    private @Nullable Document document;

    Event(Batch batch, int index) {
        this.batch = batch;
        this.index = index;
    }

    /** The event as a map; decoded once and kept. */
    public Document document() {
        Document decoded = document;
        if (decoded == null) {
            document = decoded = batch.document(index);
        }
        return decoded;
    }

    /** The event as BSON: a view on the bytes that MongoDB sent, decoded where it is looked into. */
    public RawBsonDocument bson() {
        return batch.bson(index);
    }

    /** The event as a type of your own. */
    public <T> T decode(Decoder<T> decoder) {
        return bson().decode(decoder);
    }

    /** The event as extended JSON: the server's text where the session's format is JSON, else relaxed. */
    public String json() {
        return batch.json(index);
    }

    /** MongoDB's resume token: the event's {@code _id}. Null where the pipeline removed it. */
    public @Nullable BsonDocument resumeToken() {
        return Tokens.document(batch.key(index));
    }

    /** The number of this event within the session, from 1, without holes, through reconnects. */
    public long sequence() {
        return batch.firstSequence() + index;
    }

    /** Bytes of the event as it came. */
    public int sizeBytes() {
        return batch.eventBytes(index);
    }

    /** The batch that it came in. */
    public Batch batch() {
        return batch;
    }

    @Override
    public String toString() {
        return "Event[" + sequence() + "]";
    }
}
