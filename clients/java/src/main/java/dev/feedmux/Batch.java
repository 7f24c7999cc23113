package dev.feedmux;

import dev.feedmux.errors.ProtocolException;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.util.AbstractList;
import java.util.Iterator;
import java.util.List;
import org.bson.BsonDocument;
import org.bson.BsonTimestamp;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.jspecify.annotations.Nullable;

/**
 * Consecutive events in MongoDB's order, as they arrived together. Nothing is decoded until it is asked for.
 *
 * <p>Sequences are the session object's own: they count from 1, without holes, through reconnects.
 */
public abstract sealed class Batch implements Iterable<Event> permits BsonBatch, JsonBatch {
    private final int size;
    private final Place place;
    private final @Nullable Instant readTime;
    private long firstSequence;
    private @Nullable Object owner;

    Batch(int size, Place place, @Nullable Instant readTime) {
        this.size = size;
        this.place = place;
        this.readTime = readTime;
    }

    /** The number of events. */
    public final int size() {
        return size;
    }

    /** Bytes of the events, as credit counts them. */
    public abstract long sizeBytes();

    /** The number of the first event within the session. */
    public final long firstSequence() {
        return firstSequence;
    }

    /** The number of the last event within the session. */
    public final long lastSequence() {
        return firstSequence + size - 1;
    }

    /** The place behind the last event; nowhere for the front part of a batch that was cut. */
    public final Place place() {
        return place;
    }

    /** The place behind the last event, to be stored as it is. */
    public final Position position() {
        return place.position();
    }

    /** MongoDB's resume token of the place behind the last event. */
    public final @Nullable BsonDocument resumeToken() {
        return place.resumeToken();
    }

    /** The cluster time of the place behind the last event. */
    public final @Nullable BsonTimestamp clusterTime() {
        return place.clusterTime();
    }

    /** When the server read the first of these events from MongoDB; null for an event that came in fragments. */
    public final @Nullable Instant readTime() {
        return readTime;
    }

    /** An event, from 0. */
    public final Event event(int index) {
        return new Event(this, index);
    }

    /** The events. */
    public final List<Event> events() {
        return new AbstractList<>() {
            @Override
            public Event get(int index) {
                return event(index);
            }

            @Override
            public int size() {
                return size;
            }
        };
    }

    @Override
    public final Iterator<Event> iterator() {
        return events().iterator();
    }

    /** An event's document as BSON: a view on the message's bytes where it came as BSON. */
    abstract RawBsonDocument bson(int index);

    /** An event's document decoded with the default codec. */
    abstract Document document(int index);

    /** An event's text: extended JSON. */
    abstract String json(int index);

    /** The bytes of one event, as credit counts them. */
    abstract int eventBytes(int index);

    /** The events [first, end) as a batch of their own, on the same bytes. */
    abstract Batch part(int first, int end);

    /** The {@code _id} of one event as BSON: its resume token; null where the pipeline removed it. */
    abstract @Nullable ByteBuffer token(int index);

    /** The resume token of one event, as bytes that can be compared; null where the pipeline removed it. */
    final @Nullable ByteBuffer key(int index) {
        try {
            return token(index);
        } catch (RuntimeException error) {
            throw new ProtocolException("an event cannot be read: " + error.getMessage());
        }
    }

    final void number(long first, @Nullable Object session) {
        firstSequence = first;
        owner = session;
    }

    final boolean belongsTo(Object session) {
        return owner == session;
    }

    final <B extends Batch> B numberedLike(B part, int skipped) {
        part.number(firstSequence + skipped, owner);
        return part;
    }

    final @Nullable Instant readAt() {
        return readTime;
    }

    final Place placeOfPart(int end) {
        return end == size ? place : Place.NOWHERE;
    }

    @Override
    public String toString() {
        return "Batch[" + firstSequence + ".." + lastSequence() + "]";
    }
}
