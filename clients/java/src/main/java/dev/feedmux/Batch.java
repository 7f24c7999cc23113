package dev.feedmux;

import dev.feedmux.errors.ProtocolException;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.util.AbstractList;
import java.util.Iterator;
import java.util.List;
import java.util.Objects;
import org.bson.BsonDocument;
import org.bson.BsonTimestamp;
import org.bson.Document;
import org.bson.RawBsonDocument;
import org.jspecify.annotations.Nullable;

/**
 * Consecutive events in MongoDB's order, as they arrived together. An event is decoded only when it is requested.
 *
 * <p>Sequence numbers belong to the session object: they count from 1, without gaps, across reconnects.
 */
public abstract sealed class Batch implements Iterable<Event> permits BsonBatch, JsonBatch {
    private final int size;
    private final FeedPosition feedPosition;
    private final @Nullable Instant readTime;
    private long firstSequence;
    private @Nullable Object owner;
    private boolean snapshot;
    private long generation;

    Batch(int size, FeedPosition feedPosition, @Nullable Instant readTime) {
        this.size = size;
        this.feedPosition = feedPosition;
        this.readTime = readTime;
    }

    /** Returns the number of events. */
    public final int size() {
        return size;
    }

    /** Returns the size of the events in bytes, as credit counts them. */
    public abstract long sizeBytes();

    /** Returns the sequence number of the first event in the session. */
    public final long firstSequence() {
        return firstSequence;
    }

    /** Returns the sequence number of the last event in the session. */
    public final long lastSequence() {
        return firstSequence + size - 1;
    }

    /** Returns the position after the last event. It is empty if this is the first part of a split batch. */
    public final FeedPosition feedPosition() {
        return feedPosition;
    }

    /** Returns the position after the last event, which you can store as it is. */
    public final Position position() {
        return feedPosition.position();
    }

    /** Returns MongoDB's resume token after the last event. */
    public final @Nullable BsonDocument resumeToken() {
        return feedPosition.resumeToken();
    }

    /** Returns the cluster time of the position after the last event. */
    public final @Nullable BsonTimestamp clusterTime() {
        return feedPosition.clusterTime();
    }

    /** Returns when the server read the first of these events from MongoDB; null for an event sent in fragments. */
    public final @Nullable Instant readTime() {
        return readTime;
    }

    /**
     * Whether the events are documents of a copy ({@link Start#snapshot}) rather than changes: all of them are, or none.
     */
    public final boolean isSnapshot() {
        return snapshot;
    }

    /**
     * Returns the number of the last copy that the session had read, or was reading, when the batch came; 0 for none.
     * See {@link Notice.SnapshotComplete}.
     */
    public final long generation() {
        return generation;
    }

    /** Returns the event at this index, counted from 0. Throws IndexOutOfBoundsException if there is none. */
    public final Event event(int index) {
        // An ack of an event after the last one would ack one that has not come.
        return new Event(this, Objects.checkIndex(index, size));
    }

    /** Returns the events. */
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

    /** Returns an event's document as BSON: a view of the message's bytes if the event was sent as BSON. */
    abstract RawBsonDocument bson(int index);

    /** Returns an event's document, decoded with the default codec. */
    abstract Document document(int index);

    /** Returns an event as extended JSON text. */
    abstract String json(int index);

    /** Returns the size of one event in bytes, as credit counts it. */
    abstract int eventBytes(int index);

    /** Returns the events [first, end) as a separate batch that shares the same bytes. */
    abstract Batch part(int first, int end);

    /** Returns the resume token of one event, its {@code _id}, as BSON; null if the pipeline removed it. */
    abstract @Nullable ByteBuffer token(int index);

    /** Returns the resume token of one event as comparable bytes; null if the pipeline removed it. */
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

    final void markSnapshot(boolean isSnapshot) {
        snapshot = isSnapshot;
    }

    final void markGeneration(long ofCopy) {
        generation = ofCopy;
    }

    final boolean belongsTo(Object session) {
        return owner == session;
    }

    final <B extends Batch> B numberedLike(B part, int skipped) {
        part.number(firstSequence + skipped, owner);
        part.markSnapshot(snapshot);
        part.markGeneration(generation);
        return part;
    }

    final @Nullable Instant readAt() {
        return readTime;
    }

    final FeedPosition feedPositionOfPart(int end) {
        return end == size ? feedPosition : FeedPosition.NONE;
    }

    @Override
    public String toString() {
        return "Batch[" + firstSequence + ".." + lastSequence() + "]";
    }
}
