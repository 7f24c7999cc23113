package dev.feedmux;

import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.InterruptedCallException;
import dev.feedmux.errors.SessionClosedException;
import java.lang.ref.Cleaner;
import java.time.Duration;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import org.bson.BsonDocument;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/**
 * Delivers the events of a durable subscription or of a feed, one by one. Created by {@link Subscription#open} and
 * {@link InlineFeed#open}.
 *
 * <p>The session handles credit, heartbeats and reconnects: after a lost connection, the loop continues after the last
 * event that it received. Unacked events are delivered again only if the process itself was lost.
 *
 * <p>Safe to use from several threads with {@link #take} or {@link #poll}; each event goes to one of the threads.
 * {@link #close} ends the loop of a thread that waits. An interrupt ends only the wait, with an
 * {@link InterruptedCallException}, and sets the interrupt flag again.
 */
public final class Session implements Iterable<Event>, AutoCloseable {
    private static final Cleaner CLEANER = Cleaner.create();
    private static final long FOREVER = -1;

    private final SessionBuffer buffer;
    private final Connection connection;
    private final Duration closeTimeout;
    private final Cleaner.Cleanable abandoned;

    private Session(SessionBuffer buffer, Connection connection, Duration closeTimeout) {
        this.buffer = buffer;
        this.connection = connection;
        this.closeTimeout = closeTimeout;
        // The connection does not refer to this object, so a session that is dropped without close ends its call.
        abandoned = CLEANER.register(this, connection::dropped);
    }

    /** Opens a session, and returns when the server has opened it. */
    static Session open(Transport transport, Opening opening, SessionOptions options) {
        SessionBuffer buffer = new SessionBuffer(options.onNotice());
        Connection connection = new Connection(transport, opening, options, buffer);
        connection.start();
        try {
            FeedmuxException error = connection.opened().get();
            if (error != null) {
                throw SessionBuffer.seenHere(error);
            }
        } catch (InterruptedException interrupted) {
            connection.abandon();
            throw interrupted("interrupted while the session was being opened");
        } catch (ExecutionException impossible) {
            throw new IllegalStateException(impossible);
        }
        return new Session(buffer, connection, options.closeTimeout());
    }

    /**
     * Returns the next event, and waits for it if necessary.
     *
     * @throws SessionClosedException after {@link #close}
     * @throws FeedmuxException the error that ended the session, or an error with the status CANCELLED if its client
     *     was closed; every later call throws it again
     */
    public Event take() {
        Event event = (Event) next(FOREVER, false, false);
        if (event == null) {
            throw new IllegalStateException("a wait without a timeout returned no event");
        }
        return event;
    }

    /**
     * Returns the next event, and waits for it at most this long. With {@link Duration#ZERO}, returns an event only if
     * it has already arrived.
     *
     * @throws FeedmuxException as with {@link #take}
     */
    public Optional<Event> poll(Duration timeout) {
        return Optional.ofNullable((Event) next(nanosOf(timeout), false, false));
    }

    /**
     * Returns the next event or notice, and waits for it at most this long. Notices returned here are not passed to the
     * listener.
     *
     * @throws FeedmuxException as with {@link #take}
     */
    public Optional<Item> pollItem(Duration timeout) {
        return Optional.ofNullable(next(nanosOf(timeout), true, false));
    }

    /**
     * Iterates over the events until {@link #close}. The loop throws the error that ended the session. Use it if one
     * thread reads the session. Threads that share a session use {@link #take} or {@link #poll}: if two loops have seen
     * the same event arrive, one of them gets it, and the other may get a NoSuchElementException when the session is
     * closed.
     */
    @Override
    public Iterator<Event> iterator() {
        return new Waiting<>(promised -> (Event) next(FOREVER, false, promised), false);
    }

    /**
     * Iterates over events and notices in order, until {@link #close}. Notices returned here are not passed to the
     * listener.
     */
    public Iterable<Item> items() {
        return () -> new Waiting<>(promised -> next(FOREVER, true, promised), true);
    }

    /** Iterates over the batches as they arrive, for bulk work, until {@link #close}. */
    public Iterable<Batch> batches() {
        return () -> new Waiting<>(this::takeBatch, false);
    }

    /**
     * Acks this event and all events before it: they have been processed. Acks are cumulative: acking an earlier event
     * again has no effect. An ack is cheap, because the client sends acks together. On an inline feed, an ack is not
     * stored.
     *
     * @throws IllegalArgumentException if the event belongs to another session
     * @throws SessionClosedException once {@link #close} has ended the session: nothing sends the ack, and the event
     *     comes again
     */
    public void ack(Event event) {
        checkOurs(event.batch());
        buffer.ack(event.sequence());
    }

    /** Acks this batch and everything before it. See {@link #ack(Event)}. */
    public void ack(Batch batch) {
        checkOurs(batch);
        buffer.ack(batch.lastSequence());
    }

    /** Acks all events that the session has returned. */
    public void ackAll() {
        buffer.ackHanded();
    }

    /**
     * Returns the position of {@link #progress}, which you can store as it is. In the middle of a batch,
     * {@link #resumeToken} is more exact.
     */
    public Position position() {
        return progress().position();
    }

    /**
     * Returns MongoDB's resume token of the last event returned; if all events have been returned, that of the latest
     * progress.
     */
    public @Nullable BsonDocument resumeToken() {
        return buffer.resumeToken();
    }

    /**
     * Returns the last position up to which everything has been returned, or the position at which the session began.
     * It advances even without events, so that the position of a feed that seldom matches does not leave the oplog.
     */
    public FeedPosition progress() {
        return buffer.progress();
    }

    /** Returns the cluster time of {@link #progress}. */
    public @Nullable BsonTimestamp clusterTime() {
        return progress().clusterTime();
    }

    /**
     * Returns the stored position that the server last confirmed; {@link Position#NONE} before the first confirmation.
     */
    public Position committed() {
        return buffer.committed();
    }

    /** Returns the epoch, which grows with each stream of the subscription; 0 for inline feeds. */
    public long epoch() {
        return buffer.epoch();
    }

    /**
     * Returns how far the copy is, by the last notice, while documents are still to come: the session began with
     * {@link Start#snapshot}, or at a position of such a copy, and the notice {@link Notice.SnapshotComplete} has not
     * come. Otherwise null.
     */
    public @Nullable SnapshotStatus copying() {
        return buffer.copying();
    }

    /**
     * Whether the session or its client was closed, or the session ended with an error and has returned everything
     * before it.
     */
    public boolean isClosed() {
        return buffer.isClosed();
    }

    /** Closes the session as {@link #close(Duration)} does, with {@link SessionOptions#closeTimeout}. */
    @Override
    public void close() {
        close(closeTimeout);
    }

    /**
     * Stops delivery, sends the acks, and waits at most this long until the server confirms them. Unconfirmed acks can
     * lead to repeated events in the next session, never to lost ones; a warning is logged. Closing again does nothing.
     * An interrupt ends the wait and sets the interrupt flag again; the session still has this long to send the acks.
     */
    public void close(Duration timeout) {
        buffer.close();
        long nanos = nanosOf(timeout);
        try {
            connection.done().get(nanos, TimeUnit.NANOSECONDS);
            connection.warnUnconfirmed();
        } catch (TimeoutException late) {
            connection.abandon();
        } catch (InterruptedException interrupted) {
            connection.abandonAfter(nanos);
            Thread.currentThread().interrupt();
        } catch (ExecutionException impossible) {
            throw new IllegalStateException(impossible);
        } finally {
            abandoned.clean();
        }
    }

    private @Nullable Item next(long timeoutNanos, boolean notices, boolean promised) {
        try {
            return buffer.next(timeoutNanos, notices, promised);
        } catch (InterruptedException interrupted) {
            throw interrupted("interrupted while waiting for an event");
        }
    }

    private Batch takeBatch(boolean promised) {
        try {
            return buffer.nextBatch(promised);
        } catch (InterruptedException interrupted) {
            throw interrupted("interrupted while waiting for a batch");
        }
    }

    private static long nanosOf(Duration timeout) {
        return timeout.isNegative() ? 0 : Durations.capped(timeout).toNanos();
    }

    private void checkOurs(Batch batch) {
        if (!batch.belongsTo(buffer)) {
            throw new IllegalArgumentException("the event or batch belongs to another session");
        }
    }

    private static InterruptedCallException interrupted(String what) {
        Thread.currentThread().interrupt();
        return new InterruptedCallException(what);
    }

    /**
     * An iterator that waits for items, and ends when the session is closed. Only {@code next} takes an item. It
     * returns the item that {@code hasNext} has found, even if the session was closed in between.
     */
    private final class Waiting<T> implements Iterator<T> {
        private final Function<Boolean, @Nullable T> taking;
        private final boolean notices;
        private boolean promised;

        private Waiting(Function<Boolean, @Nullable T> taking, boolean notices) {
            this.taking = taking;
            this.notices = notices;
        }

        @Override
        public boolean hasNext() {
            try {
                buffer.await(notices);
                promised = true;
                return true;
            } catch (InterruptedException interrupted) {
                throw interrupted("interrupted while waiting for an event");
            } catch (SessionClosedException closed) {
                return false;
            }
        }

        @Override
        public T next() {
            try {
                return Objects.requireNonNull(taking.apply(promised));
            } catch (SessionClosedException closed) {
                throw new NoSuchElementException();
            } finally {
                promised = false;
            }
        }
    }
}
