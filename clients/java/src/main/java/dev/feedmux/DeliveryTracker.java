package dev.feedmux;

import dev.feedmux.errors.ProtocolException;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.LongSupplier;
import org.bson.BsonTimestamp;
import org.bson.RawBsonDocument;
import org.jspecify.annotations.Nullable;

/**
 * Tracks which events were delivered under which number, which are acked, and which must not be delivered again.
 *
 * <p>The client numbers events with ordinals that never restart; the server's delivery sequences restart with every
 * stream. The tracker maps one to the other by ranges, retains the unacked batches of a durable subscription, and after
 * a reconnect recognises repeated events by their {@code _id}. An inline feed continues after the last event received,
 * so nothing is retained for it. Batches are retained whole up to a number of bytes; of older batches, only the resume
 * tokens are. Free of side effects; {@link Connection} owns a tracker and feeds it in the order of arrival.
 *
 * <p>Invariant: {@code unacked} begins with the first unacked event in stream order, and contains all events received
 * after it, in stream order. That is the order of ordinals, unless new events came among repeats, because the filter
 * was widened. {@code ranges} contains the sequences of the current stream that no ack covers yet, in sequence order.
 */
final class DeliveryTracker {
    /** {@code count} events from a sequence on, and the ordinal of the first event. */
    private record Range(long sequence, long ordinal, int count) {
        boolean continuedBy(long nextSequence, long nextOrdinal) {
            return nextSequence - sequence == count && nextOrdinal - ordinal == count;
        }
    }

    private final boolean durable;
    private final Object session;
    private final long wholeBytesMax;
    private final LongSupplier acked;
    private final Deque<Range> ranges = new ArrayDeque<>();
    private final List<UnackedBatch> unacked = new ArrayList<>();
    /** Bytes of the batches that are retained whole. */
    private long wholeBytes;
    /** How many batches at the beginning of {@code unacked} are reduced. */
    private int reduced;

    private final Map<ByteBuffer, Long> repeats = new HashMap<>();
    private @Nullable BsonTimestamp repeatsUntil;
    /** While repeats are expected: how many batches of {@code unacked} the stream has passed. */
    private int passed;
    /** And how many events of the next batch. */
    private int passedEvents;

    private boolean withinCopy;
    /** The last ordinal within a copy. A resume token does not name the copy: only a whole position does. */
    private long copiedUntil;

    private long received;
    private long nextSequence = 1;
    private long ackedSequence;
    private long floor;
    private FeedPosition ackedPosition = FeedPosition.NONE;
    private FeedPosition latest = FeedPosition.NONE;

    /**
     * @param durable whether acks matter, and a reopened stream may repeat events
     * @param session the owner of the events
     * @param wholeBytesMax the limit of bytes of unacked batches that are retained whole
     * @param acked the highest acked ordinal, requested when the limit is exceeded
     */
    DeliveryTracker(boolean durable, Object session, long wholeBytesMax, LongSupplier acked) {
        this.durable = durable;
        this.session = session;
        this.wholeBytesMax = wholeBytesMax;
        this.acked = acked;
    }

    /** Returns the bytes of the batches that are retained whole. */
    long wholeBytes() {
        return wholeBytes;
    }

    /** Returns the highest ordinal assigned. */
    long received() {
        return received;
    }

    /** Returns the position up to which everything has been received. */
    FeedPosition latest() {
        return latest;
    }

    /** Whether events that were handed out may still come again. */
    boolean expectsRepeats() {
        return !repeats.isEmpty();
    }

    /**
     * Whether acks up to a number are neither sent nor in the Open of the stream: those of events that may come again.
     * Within a copy, the Open may name an earlier position than the last ack.
     */
    boolean owesAcks(long acked) {
        if (!unacked.isEmpty() && unacked.get(0).firstSequence() <= copiedUntil) {
            return expectsRepeats();
        }
        return repeats.values().stream().anyMatch(ordinal -> ordinal <= acked);
    }

    /** Returns the position up to which everything is acked, where a new stream must begin. NONE at the start. */
    FeedPosition ackedPosition(long ackedOrdinal) {
        long acked = Math.max(ackedOrdinal, floor);
        if (acked >= received && repeats.isEmpty()) {
            return latest;
        }
        int settled = settle(acked);
        RawBsonDocument token = settled > 0 ? token(unacked.get(0), settled - 1) : null;
        return token != null ? FeedPosition.of(token) : ackedPosition;
    }

    /**
     * Says whether what arrives belongs to a copy of existing documents: its documents, and changes until its end.
     */
    void withinCopy(boolean within) {
        withinCopy = within;
    }

    /** Forgets unacked events, because the stored position was moved on purpose. The events may come again. */
    void forget() {
        floor = received;
        unacked.clear();
        wholeBytes = 0;
        reduced = 0;
        repeats.clear();
        ackedPosition = latest = FeedPosition.NONE;
    }

    /**
     * Begins a stream at {@code opened}, with sequences from 1. Acks up to {@code acked} were known when it was
     * requested.
     */
    void begin(FeedPosition opened, long acked) {
        nextSequence = 1;
        ackedSequence = 0;
        ranges.clear();
        int settled = settle(Math.max(acked, floor));
        repeats.clear();
        if (unacked.isEmpty()) {
            ackedPosition = latest = opened;
            return;
        }
        passed = 0;
        passedEvents = settled;
        reduceTo(0);
        ByteBuffer last = null;
        for (UnackedBatch batch : unacked) {
            for (int index = settled; index < batch.size(); index++) {
                ByteBuffer key = batch.key(index);
                if (key != null) {
                    last = key;
                    repeats.put(key, batch.firstSequence() + index);
                }
            }
            settled = 0;
        }
        repeatsUntil = Tokens.timeOf(Tokens.document(last));
    }

    /** Numbers a received batch, and returns its new events. Throws ProtocolException at a gap in the sequence. */
    List<Batch> arrive(long firstSequence, Batch batch) {
        if (firstSequence != nextSequence) {
            throw new ProtocolException("delivery " + firstSequence + " came where " + nextSequence + " was due");
        }
        nextSequence += batch.size();
        if (!repeats.isEmpty()) {
            stopAtNews(batch);
        }
        List<Batch> fresh;
        if (repeats.isEmpty()) {
            take(firstSequence, batch);
            if (durable) {
                retain(batch);
            }
            fresh = List.of(batch);
        } else {
            fresh = sift(firstSequence, batch);
        }
        if (repeats.isEmpty()) {
            latest = batch.feedPosition();
        }
        return fresh;
    }

    /** Records that everything at or before {@code feedPosition} has been delivered, so no earlier repeats follow. */
    void progress(FeedPosition feedPosition) {
        BsonTimestamp time = feedPosition.clusterTime();
        if (time != null && repeatsUntil != null && time.compareTo(repeatsUntil) > 0) {
            repeats.clear();
        }
        if (repeats.isEmpty()) {
            latest = feedPosition;
        }
    }

    /**
     * Returns the delivery sequence of the current stream up to which everything is acked; 0 for nothing. After a
     * rewind, older events precede those handed out earlier; then the first unacked event decides.
     */
    long ackedSequence(long acked) {
        settle(acked);
        for (Range first = ranges.peekFirst(); first != null; first = ranges.peekFirst()) {
            long done = Math.min(acked - first.ordinal + 1, first.count);
            if (done <= 0) {
                break;
            }
            ackedSequence = first.sequence + done - 1;
            if (done < first.count) {
                break;
            }
            ranges.removeFirst();
        }
        return ackedSequence;
    }

    private void take(long sequence, Batch batch) {
        batch.number(received + 1, session);
        received += batch.size();
        if (withinCopy) {
            copiedUntil = received;
        }
        map(sequence, batch.firstSequence(), batch.size());
    }

    private List<Batch> sift(long firstSequence, Batch batch) {
        List<Batch> fresh = new ArrayList<>();
        int start = 0;
        for (int index = 0; index < batch.size(); index++) {
            Long ordinal = repeats.remove(UnackedBatch.keyOf(batch, index));
            if (ordinal == null) {
                continue;
            }
            if (index > start) {
                fresh.add(takePart(firstSequence, batch, start, index));
            }
            map(firstSequence + index, ordinal, 1);
            pass(ordinal);
            start = index + 1;
        }
        if (start < batch.size()) {
            fresh.add(takePart(firstSequence, batch, start, batch.size()));
        }
        return fresh;
    }

    private Batch takePart(long firstSequence, Batch batch, int start, int end) {
        Batch part = batch.part(start, end);
        take(firstSequence + start, part);
        // Reduced, because a whole part would retain its entire message.
        insert(UnackedBatch.reduced(part));
        return part;
    }

    private void retain(Batch batch) {
        UnackedBatch whole = UnackedBatch.whole(batch);
        unacked.add(whole);
        wholeBytes += whole.wholeBytes();
        if (wholeBytes > wholeBytesMax) {
            settle(acked.getAsLong());
            reduceTo(wholeBytesMax);
        }
    }

    /** Replaces the oldest batches by their tokens until at most this many bytes are retained whole. */
    private void reduceTo(long bytes) {
        while (wholeBytes > bytes) {
            UnackedBatch oldest = unacked.get(reduced);
            wholeBytes -= oldest.wholeBytes();
            unacked.set(reduced, oldest.reduce());
            reduced++;
        }
    }

    private void stopAtNews(Batch batch) {
        BsonTimestamp first = Tokens.timeOf(Tokens.document(UnackedBatch.keyOf(batch, 0)));
        if (first != null && repeatsUntil != null && first.compareTo(repeatsUntil) > 0) {
            repeats.clear();
        }
    }

    private void map(long sequence, long ordinal, int count) {
        if (!durable) {
            return;
        }
        Range last = ranges.peekLast();
        if (last != null && last.continuedBy(sequence, ordinal)) {
            ranges.removeLast();
            ranges.addLast(new Range(last.sequence, last.ordinal, last.count + count));
        } else {
            ranges.addLast(new Range(sequence, ordinal, count));
        }
    }

    /** Records that an event of {@code unacked} came again. Such events come in stream order. */
    private void pass(long ordinal) {
        for (int index = passed; index < unacked.size(); index++) {
            UnackedBatch batch = unacked.get(index);
            if (batch.firstSequence() <= ordinal && ordinal <= batch.lastSequence()) {
                passed = index;
                passedEvents = (int) (ordinal + 1 - batch.firstSequence());
                return;
            }
        }
    }

    /** Retains a batch that is new among repeats, at the position of the stream. */
    private void insert(UnackedBatch batch) {
        if (passedEvents > 0) {
            UnackedBatch around = unacked.get(passed);
            if (passedEvents < around.size()) {
                wholeBytes -= around.wholeBytes();
                unacked.set(passed, around.part(0, passedEvents));
                unacked.add(passed + 1, around.part(passedEvents, around.size()));
            }
            passed++;
        }
        unacked.add(passed, batch);
        passedEvents = batch.size();
        reduced = Math.min(reduced, passed);
    }

    /** Returns the token of an event, if a new stream may begin after the event alone. */
    private @Nullable RawBsonDocument token(UnackedBatch batch, int index) {
        return batch.firstSequence() > copiedUntil ? Tokens.document(batch.key(index)) : null;
    }

    /**
     * Evicts acked batches up to the first unacked event. Returns how many events of the first remaining batch are
     * acked. While repeats are expected, it stops where the stream is, because new events may come before the next
     * repeat.
     */
    private int settle(long acked) {
        while (!unacked.isEmpty()) {
            UnackedBatch first = unacked.get(0);
            int done = (int) Math.min(first.size(), Math.max(0, acked + 1 - first.firstSequence()));
            if (!repeats.isEmpty() && passed == 0) {
                done = Math.min(done, passedEvents);
            }
            if (done < first.size()) {
                return done;
            }
            unacked.remove(0);
            wholeBytes -= first.wholeBytes();
            reduced = Math.max(0, reduced - 1);
            if (passed > 0) {
                passed--;
            } else {
                passedEvents = 0;
            }
            if (!first.feedPosition().position().isEmpty()) {
                ackedPosition = first.feedPosition();
                continue;
            }
            RawBsonDocument token = token(first, first.size() - 1);
            if (token != null) {
                ackedPosition = FeedPosition.of(token);
            }
        }
        return 0;
    }
}
