package dev.feedmux;

import org.bson.BsonDocument;
import org.jspecify.annotations.Nullable;

/**
 * Iterates over the events of the batches that a session takes, and knows the position after what was handed out. Not
 * synchronized: the {@link SessionBuffer} guards it.
 */
final class EventIterator {
    /** The last batch taken, of which {@code next} events have been handed out. */
    private @Nullable Batch batch;

    private int next;
    /** What has been withdrawn up to this number counts as handed out for the progress. */
    private long withdrawn;

    private long progressAfter;
    private FeedPosition progress = FeedPosition.NONE;

    boolean hasNext() {
        return batch != null && next < batch.size();
    }

    /** Returns the next event of the current batch; null if it has no more. */
    @Nullable
    Event next() {
        Batch current = batch;
        return current == null || next == current.size() ? null : current.event(next++);
    }

    /** Makes this the current batch. */
    void take(Batch taken, boolean whole) {
        settle();
        batch = taken;
        next = whole ? taken.size() : 0;
    }

    /** Hands out the rest of the current batch; null if nothing is left. */
    @Nullable
    Batch rest() {
        Batch current = batch;
        if (current == null || next == current.size()) {
            return null;
        }
        Batch rest = next == 0 ? current : current.part(next, current.size());
        next = current.size();
        return rest;
    }

    /** Drops the current batch, because all events up to this number are withdrawn. */
    void withdraw(long received) {
        settle();
        batch = null;
        next = 0;
        withdrawn = received;
    }

    /** Returns the number of the last event handed out or withdrawn; 0 for none. */
    long handed() {
        return batch == null ? withdrawn : batch.firstSequence() + next - 1;
    }

    /** Returns the token of the last event handed out if that event is in the middle of a batch; else null. */
    @Nullable
    BsonDocument tokenWithin() {
        return batch == null || next == batch.size() ? null : tokenOfLast();
    }

    /** Returns the token of the last event handed out of the current batch; null if there is none. */
    @Nullable
    BsonDocument tokenOfLast() {
        Batch current = batch;
        return current == null || next == 0 ? null : current.event(next - 1).resumeToken();
    }

    /** Records where the session begins, or was moved to, after this number of events. */
    void begin(long after, FeedPosition feedPosition) {
        progressAfter = after;
        progress = feedPosition;
    }

    /** Returns the position after the last batch handed out completely, of later progress, or of the beginning. */
    FeedPosition feedPosition() {
        settle();
        return progress;
    }

    /** Records progress up to {@code feedPosition}, if the events before it have been handed out. */
    void progress(long after, FeedPosition feedPosition) {
        settle();
        if (after <= handed() && !feedPosition.position().isEmpty()) {
            progressAfter = after;
            progress = feedPosition;
        }
    }

    private void settle() {
        Batch current = batch;
        if (current != null
                && next == current.size()
                && current.lastSequence() > progressAfter
                && !current.position().isEmpty()) {
            progressAfter = current.lastSequence();
            progress = current.feedPosition();
        }
    }
}
