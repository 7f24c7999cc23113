package dev.feedmux;

import org.bson.BsonDocument;
import org.jspecify.annotations.Nullable;

/** What a session has handed out, and the place behind it. Not synchronized: the {@link Desk} guards it. */
final class Cursor {
    /** The batch taken last, of which {@code next} events were handed out. */
    private @Nullable Batch batch;

    private int next;
    private long progressAfter;
    private Place progress = Place.NOWHERE;

    boolean hasNext() {
        return batch != null && next < batch.size();
    }

    /** The next event of the current batch; null where it has no more. */
    @Nullable
    Event next() {
        Batch current = batch;
        return current == null || next == current.size() ? null : current.event(next++);
    }

    /** Makes a batch the current one. */
    void take(Batch taken, boolean whole) {
        settle();
        batch = taken;
        next = whole ? taken.size() : 0;
    }

    /** What the loop over events has left of the current batch, now handed out; null for nothing. */
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

    /** Nothing more of the current batch is handed out. */
    void dropRest() {
        Batch current = batch;
        if (current != null && next < current.size()) {
            batch = current.part(0, next);
        }
    }

    /** The number of the last event handed out; 0 for none. */
    long handed() {
        return batch == null ? 0 : batch.firstSequence() + next - 1;
    }

    /** Whether the last event handed out is this session's, in the middle of a batch: then its token is the place. */
    @Nullable
    BsonDocument tokenWithin() {
        Batch current = batch;
        return current == null || next == 0 || next == current.size()
                ? null
                : current.event(next - 1).resumeToken();
    }

    /** The place behind the last batch handed out to its end, or reached by progress since; {@code begin} before. */
    Place place(Place begin) {
        settle();
        return progress.position().isEmpty() ? begin : progress;
    }

    /** Everything up to {@code place} is received; it counts once the events before it are handed out. */
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
