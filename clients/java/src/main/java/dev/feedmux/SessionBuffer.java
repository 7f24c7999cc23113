package dev.feedmux;

import dev.feedmux.CreditWindow.Grant;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.SessionClosedException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Iterator;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.bson.BsonDocument;
import org.jspecify.annotations.Nullable;

/**
 * The state shared by the user's threads and the {@link Connection} of a session. The connection puts entries, and sets
 * thresholds of acks and of taken events at which to wake it; the thread that crosses a threshold disarms it and wakes
 * the connection. So an ack or an event costs only an uncontended lock. Neither the connection nor the user's listener
 * is called under the lock.
 */
final class SessionBuffer {
    static final long NEVER = 1L << 62;

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition arrived = lock.newCondition();
    private final Deque<Entry> entries = new ArrayDeque<>();
    private final EventIterator iterator = new EventIterator();
    private final Consumer<Notice> listener;
    private volatile Runnable wakeConnection = () -> {};

    private long acked;
    private long takenEvents;
    private long takenBytes;
    private boolean closing;
    private boolean closedByUser;
    private boolean ended;
    /** The end of a copy was dropped before it was handed out, and another one is to come. */
    private boolean completionDue;

    private long alarm = NEVER;
    private long refillEventsAt = NEVER;
    private long refillBytesAt = NEVER;
    private long latestAfter;
    private FeedPosition latest = FeedPosition.NONE;
    private Position committed = Position.NONE;
    private long epoch;
    /**
     * Set when a stream is opened within a copy of existing documents; follows the notices that are taken, and is null from
     * the end of the copy on.
     */
    private @Nullable SnapshotStatus copying;

    /** {@code listener} receives notices in the thread that takes the events around them. */
    SessionBuffer(Consumer<Notice> listener) {
        this.listener = listener;
    }

    void setWake(Runnable wake) {
        wakeConnection = wake;
    }

    // --- The user's side.

    /**
     * Returns the next event, or with {@code notices} the next notice or event; null after the timeout (negative means
     * forever). Throws SessionClosedException after a close, or the error that ended the session; after the client is
     * closed, an error, until the session itself is closed too. Returns what {@link #await} has {@code promised} even
     * after a close.
     */
    @Nullable
    Item next(long timeoutNanos, boolean notices, boolean promised) throws InterruptedException {
        long deadline = timeoutNanos < 0 ? 0 : System.nanoTime() + timeoutNanos;
        while (true) {
            Entry entry;
            boolean wake = false;
            lock.lockInterruptibly();
            try {
                if (!awaitSomething(timeoutNanos < 0, deadline, promised)) {
                    return null;
                }
                Event event = iterator.next();
                if (event != null) {
                    return event;
                }
                entry = takeEntry();
                if (entry instanceof Entry.Events events) {
                    wake = take(events.batch(), false);
                }
            } finally {
                lock.unlock();
            }
            wakeIf(wake);
            if (entry instanceof Entry.QueuedNotice said) {
                if (notices) {
                    return said.notice();
                }
                listener.accept(said.notice());
            }
        }
    }

    /**
     * Waits until there is an event, or with {@code notices} a notice or an event, and leaves it to the thread that
     * takes it. Throws as {@link #next}.
     */
    void await(boolean notices) throws InterruptedException {
        while (true) {
            Entry entry;
            lock.lockInterruptibly();
            try {
                awaitSomething(true, 0, false);
                if (iterator.hasNext() || entries.getFirst() instanceof Entry.Events) {
                    return;
                }
                if (notices && entries.getFirst() instanceof Entry.QueuedNotice) {
                    return;
                }
                entry = takeEntry();
            } finally {
                lock.unlock();
            }
            if (entry instanceof Entry.QueuedNotice said) {
                listener.accept(said.notice());
            }
        }
    }

    /** Returns the next batch, or the rest of the current batch. Throws as {@link #next}. */
    Batch nextBatch(boolean promised) throws InterruptedException {
        while (true) {
            Entry entry;
            boolean wake = false;
            lock.lockInterruptibly();
            try {
                awaitSomething(true, 0, promised);
                Batch rest = iterator.rest();
                if (rest != null) {
                    return rest;
                }
                entry = takeEntry();
                if (entry instanceof Entry.Events events) {
                    wake = take(events.batch(), true);
                }
            } finally {
                lock.unlock();
            }
            wakeIf(wake);
            if (entry instanceof Entry.Events events) {
                return events.batch();
            }
            if (entry instanceof Entry.QueuedNotice said) {
                listener.accept(said.notice());
            }
        }
    }

    /** Acks everything up to this number. Throws once the session has ended and is closed: nothing sends the ack. */
    void ack(long ordinal) {
        boolean wake = false;
        lock.lock();
        try {
            if (ordinal > acked) {
                if (closing && ended) {
                    throw closedError();
                }
                acked = ordinal;
                if (acked >= alarm) {
                    alarm = NEVER;
                    wake = true;
                }
            }
        } finally {
            lock.unlock();
        }
        wakeIf(wake);
    }

    /** Acks everything handed out. */
    void ackHanded() {
        ack(locked(iterator::handed));
    }

    /** Ends the user's loop. */
    void close() {
        lock.lock();
        try {
            closing = closedByUser = true;
            arrived.signalAll();
        } finally {
            lock.unlock();
            wakeConnection.run();
        }
    }

    boolean isClosed() {
        return locked(() -> closing || (ended && !iterator.hasNext() && entries.peek() instanceof Entry.Ended));
    }

    FeedPosition progress() {
        return locked(() -> {
            takeProgress();
            return iterator.feedPosition();
        });
    }

    @Nullable
    BsonDocument resumeToken() {
        BsonDocument within = locked(iterator::tokenWithin);
        if (within != null) {
            return within;
        }
        BsonDocument token = progress().resumeToken();
        // The server omits a long token, which only the event itself has.
        return token != null ? token : locked(iterator::tokenOfLast);
    }

    Position committed() {
        return locked(() -> committed);
    }

    long epoch() {
        return locked(() -> epoch);
    }

    @Nullable
    SnapshotStatus copying() {
        return locked(() -> copying);
    }

    // --- The connection's side.

    /** Ends the user's loop with an error, because the client was closed and not the session. */
    void closeWithClient() {
        lock.lock();
        try {
            closing = true;
            arrived.signalAll();
        } finally {
            lock.unlock();
            wakeConnection.run();
        }
    }

    void put(Entry entry) {
        lock.lock();
        try {
            dropReplaced(topic(entry));
            entries.addLast(entry);
            if (entry instanceof Entry.Ended) {
                ended = true;
                alarm = refillEventsAt = refillBytesAt = NEVER;
            }
            arrived.signalAll();
        } finally {
            lock.unlock();
        }
    }

    /**
     * Removes the events that have not been handed out, of all {@code received} ones, also those of the current batch, and
     * the end of a copy. Discounts from the window what was not counted as taken.
     */
    void forget(CreditWindow window, long received) {
        lock.lock();
        try {
            takeProgress();
            latestAfter = received;
            latest = FeedPosition.NONE;
            for (Entry entry : entries) {
                if (entry instanceof Entry.Events events) {
                    window.discard(events.batch().size(), events.batch().sizeBytes());
                }
            }
            entries.removeIf(entry -> entry instanceof Entry.Events || isCompletion(entry));
            completionDue = false;
            iterator.withdraw(received);
        } finally {
            lock.unlock();
        }
    }

    boolean closing() {
        return locked(() -> closing);
    }

    long acked() {
        return locked(() -> acked);
    }

    /**
     * Arms the alarm: an ack of {@code ordinal} or higher wakes the connection. Returns true if it is already acked;
     * then nothing wakes the connection.
     */
    boolean alarmAt(long ordinal) {
        lock.lock();
        try {
            boolean reached = acked >= ordinal;
            alarm = reached ? NEVER : ordinal;
            return reached;
        } finally {
            lock.unlock();
        }
    }

    void disarm() {
        alarmAt(NEVER);
    }

    /** Returns the credit with which to open a stream. */
    Grant open(CreditWindow window) {
        return locked(() -> window.open(takenEvents, takenBytes));
    }

    /** Returns what can be granted now, and sets the totals at which taking a batch wakes the connection. */
    @Nullable
    Grant refill(CreditWindow window) {
        lock.lock();
        try {
            Grant grant = window.refill(takenEvents, takenBytes);
            refillEventsAt = window.refillEventsAt();
            refillBytesAt = window.refillBytesAt();
            return grant;
        } finally {
            lock.unlock();
        }
    }

    /** Everything before {@code feedPosition} has been received; {@code after} is the last event before it. */
    void publish(long after, FeedPosition feedPosition) {
        lock.lock();
        try {
            latestAfter = after;
            latest = feedPosition;
        } finally {
            lock.unlock();
        }
    }

    /** The session begins at {@code feedPosition}, for the first time or because it was moved there. */
    void publishBegin(long after, FeedPosition feedPosition) {
        lock.lock();
        try {
            iterator.begin(after, feedPosition);
        } finally {
            lock.unlock();
        }
    }

    void publishOpened(long newEpoch, @Nullable SnapshotStatus copy) {
        lock.lock();
        try {
            epoch = newEpoch;
            if (copy != null || entries.stream().noneMatch(SessionBuffer::isCompletion)) {
                copying = copy; // otherwise until the end of the copy is taken, after its documents
            }
            if (copy != null) {
                // This stream says how far the copy is, and its documents come again before another end.
                completionDue |= entries.stream().anyMatch(SessionBuffer::isCompletion);
                entries.removeIf(entry -> isProgress(entry) || isCompletion(entry));
            } else {
                completionDue = false;
                dropProgressAfterDocuments();
            }
        } finally {
            lock.unlock();
        }
    }

    void publishCommitted(Position position) {
        lock.lock();
        try {
            committed = position;
        } finally {
            lock.unlock();
        }
    }

    // --- Under the lock.

    /** Waits until there is something to hand out; false at the deadline. Throws if the session is closed. */
    private boolean awaitSomething(boolean forever, long deadline, boolean promised) throws InterruptedException {
        long left = forever ? 0 : deadline - System.nanoTime();
        while (!closing && !iterator.hasNext() && entries.isEmpty()) {
            if (forever) {
                arrived.await();
            } else if (left <= 0) {
                return false;
            } else {
                left = arrived.awaitNanos(left);
            }
        }
        Entry first = entries.peek();
        if (promised && closedByUser && (iterator.hasNext() || (first != null && !(first instanceof Entry.Ended)))) {
            return true;
        }
        if (closing) {
            throw closedError();
        }
        return true;
    }

    private FeedmuxException closedError() {
        return closedByUser ? new SessionClosedException("the session is closed") : Transport.clientClosed();
    }

    private void takeProgress() {
        // Not after the end of a copy that was not handed out: a program that stores that position would miss the end.
        if (latestAfter <= iterator.handed()
                && !completionDue
                && entries.stream().noneMatch(SessionBuffer::isCompletion)) {
            iterator.progress(latestAfter, latest);
        }
    }

    /** Takes the first entry. The end stays, for all other waiting threads and for the next call. */
    private Entry takeEntry() {
        Entry first = entries.getFirst();
        if (first instanceof Entry.Ended end) {
            throw end.error() == null ? new SessionClosedException("the session has ended") : seenHere(end.error());
        }
        if (first instanceof Entry.QueuedNotice said) {
            followCopy(said.notice());
        }
        return entries.removeFirst();
    }

    /** A notice before documents stays outside of a copy, because it tells of which copy they are. */
    private void dropProgressAfterDocuments() {
        Iterator<Entry> last = entries.descendingIterator();
        while (last.hasNext()) {
            Entry entry = last.next();
            if (entry instanceof Entry.Events events && events.batch().isSnapshot()) {
                return;
            }
            if (isProgress(entry)) {
                last.remove();
            }
        }
    }

    /** Drops the notices since the last events that a newer one replaces. */
    private void dropReplaced(@Nullable Object topic) {
        Iterator<Entry> last = entries.descendingIterator();
        while (topic != null && last.hasNext()) {
            Entry entry = last.next();
            if (entry instanceof Entry.Events) {
                return;
            }
            if (topic.equals(topic(entry))) {
                last.remove();
            }
        }
    }

    /**
     * Returns what is equal for notices of which a newer one replaces an unread one: a session that nobody reads would
     * collect them for as long as an outage lasts. Null for everything of which each counts.
     */
    private static @Nullable Object topic(Entry entry) {
        if (!(entry instanceof Entry.QueuedNotice said)) {
            return null;
        }
        Notice notice = said.notice();
        boolean isNewestEnough = notice instanceof Notice.Disconnected
                || notice instanceof Notice.Draining
                || notice instanceof Notice.HistoryAtRisk
                || notice instanceof Notice.Unacknowledged;
        return isNewestEnough ? notice.getClass() : notice instanceof Notice.Degraded ? notice : null;
    }

    private void followCopy(Notice notice) {
        if (notice instanceof Notice.SnapshotComplete) {
            copying = null;
            completionDue = false;
        } else if (notice instanceof Notice.SnapshotProgress progress) {
            copying = progress.status();
        }
    }

    private static boolean isProgress(Entry entry) {
        return entry instanceof Entry.QueuedNotice said && said.notice() instanceof Notice.SnapshotProgress;
    }

    /** Whether it is the end of a copy. */
    private static boolean isCompletion(Entry entry) {
        return entry instanceof Entry.QueuedNotice said && said.notice() instanceof Notice.SnapshotComplete;
    }

    private boolean take(Batch batch, boolean whole) {
        iterator.take(batch, whole);
        takenEvents += batch.size();
        takenBytes += batch.sizeBytes();
        arrived.signalAll();
        if (takenEvents < refillEventsAt && takenBytes < refillBytesAt) {
            return false;
        }
        refillEventsAt = refillBytesAt = NEVER;
        return true;
    }

    /** Adds the caller's stack trace to an error that was created on a gRPC thread. */
    static FeedmuxException seenHere(FeedmuxException error) {
        if (error.getSuppressed().length == 0) {
            error.addSuppressed(new Throwable("the session threw the error here"));
        }
        return error;
    }

    private void wakeIf(boolean wake) {
        if (wake) {
            wakeConnection.run();
        }
    }

    private <T> T locked(Supplier<T> read) {
        lock.lock();
        try {
            return read.get();
        } finally {
            lock.unlock();
        }
    }
}
