package dev.feedmux;

import org.bson.BsonDocument;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.bson.codecs.Decoder;
import org.jspecify.annotations.Nullable;

/** A change event. */
public final class Event implements Item {
    private final Batch batch;
    private final int index;
    private @Nullable Document document;

    Event(Batch batch, int index) {
        this.batch = batch;
        this.index = index;
    }

    /** Returns the event as a map. It is decoded once and cached. */
    public Document document() {
        Document decoded = document;
        if (decoded == null) {
            document = decoded = batch.document(index);
        }
        return decoded;
    }

    /** Returns the event as BSON: a view of the bytes that MongoDB sent, in which fields are decoded on access. */
    public RawBsonDocument bson() {
        return batch.bson(index);
    }

    /** Decodes the event to a type of your own. */
    public <T> T decode(Decoder<T> decoder) {
        return bson().decode(decoder);
    }

    /** Returns the event as extended JSON: the server's text if the session's format is JSON, else relaxed JSON. */
    public String json() {
        return batch.json(index);
    }

    /** Returns MongoDB's resume token, the event's {@code _id}; null if the pipeline removed it. */
    public @Nullable BsonDocument resumeToken() {
        return Tokens.document(batch.key(index));
    }

    /** Whether the event is a document of a copy ({@link Start#snapshot}) rather than a change. */
    public boolean isSnapshot() {
        return batch.isSnapshot();
    }

    /** Returns the sequence number of this event in the session, counted from 1, without gaps, across reconnects. */
    public long sequence() {
        return batch.firstSequence() + index;
    }

    /** Returns the size in bytes of the event as it was sent. */
    public int sizeBytes() {
        return batch.eventBytes(index);
    }

    /** Returns the batch in which this event arrived. */
    public Batch batch() {
        return batch;
    }

    @Override
    public String toString() {
        return "Event[" + sequence() + "]";
    }
}
