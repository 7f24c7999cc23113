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
 * Events of a durable subscription or of a feed, one by one. Made by {@link Subscription#open} and
 * {@link InlineFeed#open}.
 *
 * <p>Credits, heartbeats and reconnecting are the session's work: after a lost connection the loop goes on behind the
 * last event it has seen. What was not acked comes again only if the process itself was lost.
 *
 * <p>Safe to use from several threads, with {@link #take} or {@link #poll}; each event goes to one of them.
 * {@link #close} from another thread ends the loop of one that waits. An interrupt ends only the waiting:
 * {@link InterruptedCallException}, with the flag set again.
 */
public final class Session implements Iterable<Event>, AutoCloseable {
    private static final Cleaner CLEANER = Cleaner.create();
    private static final long FOREVER = -1;

    private final Desk desk;
    private final Runner runner;
    private final Duration closeTimeout;
    private final Cleaner.Cleanable abandoned;

    private Session(Desk desk, Runner runner, Duration closeTimeout) {
        this.desk = desk;
        this.runner = runner;
        this.closeTimeout = closeTimeout;
        // The runner knows nothing of this object, so a session that is dropped without close ends its call.
        abandoned = CLEANER.register(this, runner::abandon);
    }

    /** Opens; returns when the server has. */
    static Session open(Link link, Opening opening, SessionOptions options) {
        Desk desk = new Desk(options.onNotice());
        Runner runner = new Runner(link, opening, options, desk);
        runner.start();
        try {
            FeedmuxException error = runner.opened().get();
            if (error != null) {
                throw Desk.seenHere(error);
            }
        } catch (InterruptedException interrupted) {
            runner.abandon();
            throw interrupted("interrupted while the session was being opened");
        } catch (ExecutionException impossible) {
            throw new IllegalStateException(impossible);
        }
        return new Session(desk, runner, options.closeTimeout());
    }

    /**
     * The next event; waits for it.
     *
     * @throws SessionClosedException after {@link #close}
     * @throws FeedmuxException that ended the session, or with the status CANCELLED where its client was closed; again at
     *     every further call
     */
    public Event take() {
        Event event = (Event) next(FOREVER, false, false);
        if (event == null) {
            throw new IllegalStateException("waited without an end, and nothing came");
        }
        return event;
    }

    /**
     * The next event; waits for it at most so long. {@link Duration#ZERO}: only if it is here already.
     *
     * @throws FeedmuxException as {@link #take}
     */
    public Optional<Event> poll(Duration timeout) {
        return Optional.ofNullable((Event) next(Math.max(0, timeout.toNanos()), false, false));
    }

    /**
     * The next event or notice; waits for it at most so long. Notices handed out here are not told to the listener.
     *
     * @throws FeedmuxException as {@link #take}
     */
    public Optional<Item> pollItem(Duration timeout) {
        return Optional.ofNullable(next(Math.max(0, timeout.toNanos()), true, false));
    }

    /**
     * Events until {@link #close}. The error that ended the session comes out of the loop. For a session that one thread
     * reads: threads that share one use {@link #take} or {@link #poll}, because where two loops have seen the same event
     * arrive, one of them gets it and the other may meet the close with a NoSuchElementException.
     */
    @Override
    public Iterator<Event> iterator() {
        return new Waiting<>(promised -> (Event) next(FOREVER, false, promised), false);
    }

    /** Events and notices in order, until {@link #close}; notices handed out here are not told to the listener. */
    public Iterable<Item> items() {
        return () -> new Waiting<>(promised -> next(FOREVER, true, promised), true);
    }

    /** Batches as they arrive, for bulk work, until {@link #close}. */
    public Iterable<Batch> batches() {
        return () -> new Waiting<>(this::takeBatch, false);
    }

    /**
     * Everything up to and including this event has been processed. Cumulative: an earlier one is no news. Costs next to
     * nothing: acks are sent together. On an inline feed it is accepted and stored nowhere.
     *
     * @throws IllegalArgumentException for another session's event
     */
    public void ack(Event event) {
        checkOurs(event.batch());
        desk.ack(event.sequence());
    }

    /** Everything up to and including this batch has been processed; as {@link #ack(Event)}. */
    public void ack(Batch batch) {
        checkOurs(batch);
        desk.ack(batch.lastSequence());
    }

    /** Everything handed out has been processed. */
    public void ackAll() {
        desk.ackHanded();
    }

    /**
     * The position of {@link #progress}, to be stored as it is. In the middle of a batch {@link #resumeToken} is more
     * exact.
     */
    public Position position() {
        return progress().position();
    }

    /** MongoDB's resume token behind the last event handed out; where all are, of the latest progress. */
    public @Nullable BsonDocument resumeToken() {
        return desk.resumeToken();
    }

    /**
     * The last place up to which everything has been handed out, or where the session began. It moves on without events
     * too, so that a feed that seldom matches does not fall off the oplog.
     */
    public Place progress() {
        return desk.progress();
    }

    /** The cluster time of {@link #progress}. */
    public @Nullable BsonTimestamp clusterTime() {
        return progress().clusterTime();
    }

    /** The stored position as last confirmed by the server; {@link Position#NONE} before the first confirmation. */
    public Position committed() {
        return desk.committed();
    }

    /** Grows with each stream of the subscription; 0 on inline feeds. */
    public long epoch() {
        return desk.epoch();
    }

    /** Whether the session or its client was closed, or everything before the error that ended it was handed out. */
    public boolean isClosed() {
        return desk.isClosed();
    }

    /** As {@link #close(Duration)} with the options' time. */
    @Override
    public void close() {
        close(closeTimeout);
    }

    /**
     * Stops handing out, sends the acks and waits until they are confirmed, at most so long. Acks that could not be
     * confirmed mean repeats in the next session, never a loss. Closing again does nothing. An interrupt ends the
     * waiting, with the flag set again.
     */
    public void close(Duration timeout) {
        desk.close();
        try {
            runner.done().get(timeout.toNanos(), TimeUnit.NANOSECONDS);
        } catch (TimeoutException late) {
            runner.abandon();
        } catch (InterruptedException interrupted) {
            runner.abandon();
            Thread.currentThread().interrupt();
        } catch (ExecutionException impossible) {
            throw new IllegalStateException(impossible);
        } finally {
            abandoned.clean();
        }
    }

    private @Nullable Item next(long timeoutNanos, boolean notices, boolean promised) {
        try {
            return desk.next(timeoutNanos, notices, promised);
        } catch (InterruptedException interrupted) {
            throw interrupted("interrupted while waiting for an event");
        }
    }

    private Batch takeBatch(boolean promised) {
        try {
            return desk.nextBatch(promised);
        } catch (InterruptedException interrupted) {
            throw interrupted("interrupted while waiting for a batch");
        }
    }

    private void checkOurs(Batch batch) {
        if (!batch.belongsTo(desk)) {
            throw new IllegalArgumentException("the event is another session's");
        }
    }

    private static InterruptedCallException interrupted(String what) {
        Thread.currentThread().interrupt();
        return new InterruptedCallException(what);
    }

    /**
     * An iterator that waits; it ends where the session was closed. Only {@code next} takes anything, and it gives what
     * {@code hasNext} has found also where the session was closed in between.
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
                desk.await(notices);
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
