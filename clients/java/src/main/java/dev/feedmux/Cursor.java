package dev.feedmux;

import org.bson.BsonDocument;
import org.jspecify.annotations.Nullable;

/** Tracks what a session has handed out, and the position after it. Not synchronized: the {@link Desk} guards it. */
final class Cursor {
    /** The last batch taken, of which {@code next} events have been handed out. */
    private @Nullable Batch batch;

    private int next;
    private long progressAfter;
    private Place progress = Place.NOWHERE;

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

    /** Drops the rest of the current batch. */
    void dropRest() {
        Batch current = batch;
        if (current != null && next < current.size()) {
            batch = current.part(0, next);
        }
    }

    /** Returns the number of the last event handed out; 0 for none. */
    long handed() {
        return batch == null ? 0 : batch.firstSequence() + next - 1;
    }

    /** Returns the token of the last event handed out if that event is in the middle of a batch; else null. */
    @Nullable
    BsonDocument tokenWithin() {
        Batch current = batch;
        return current == null || next == 0 || next == current.size()
                ? null
                : current.event(next - 1).resumeToken();
    }

    /**
     * Returns the place after the last batch handed out completely, or of later progress; {@code begin} before that.
     */
    Place place(Place begin) {
        settle();
        return progress.position().isEmpty() ? begin : progress;
    }

    /** Records progress up to {@code place}, if the events before it have been handed out. */
    void progress(long after, Place place) {
        settle();
        if (after <= handed() && !place.position().isEmpty()) {
            progressAfter = after;
            progress = place;
        }
    }

    private void settle() {
        Batch current = batch;
        if (current != null
                && next == current.size()
                && current.lastSequence() > progressAfter
                && !current.position().isEmpty()) {
            progressAfter = current.lastSequence();
            progress = current.place();
        }
    }
}
