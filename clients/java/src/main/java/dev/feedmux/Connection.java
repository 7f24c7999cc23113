package dev.feedmux;

import dev.feedmux.ConnectionStates.Action;
import dev.feedmux.ConnectionStates.Event;
import dev.feedmux.ConnectionStates.State;
import dev.feedmux.ConnectionStates.Transition;
import dev.feedmux.errors.Failure;
import dev.feedmux.errors.FeedInvalidatedException;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.ProtocolException;
import dev.feedmux.errors.SessionClosedException;
import dev.feedmux.errors.SnapshotUnsupportedException;
import dev.feedmux.errors.UnavailableException;
import io.grpc.Status;
import io.grpc.SynchronizationContext;
import io.grpc.SynchronizationContext.ScheduledHandle;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.DoubleSupplier;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;

/**
 * The network side of a session: opens the stream, reads it, reopens it when it breaks, and ends it.
 *
 * <p>Everything runs in one {@link SynchronizationContext}, on a thread of gRPC, the timer or the user; nothing in it
 * blocks. Received messages go through {@link Responses}, {@link CreditWindow} and {@link DeliveryTracker} to the
 * {@link SessionBuffer}; {@link RequestSender} sends acks and credit. These classes, {@link ConnectionStates} and
 * {@link Recovery} make the decisions; this class handles time and calls.
 */
final class Connection implements Transport.Dependent {
    private static final System.Logger LOG = System.getLogger("dev.feedmux");
    private static final ScheduledExecutorService TIMERS = timers();

    private final SynchronizationContext context = new SynchronizationContext((thread, defect) -> defect(defect));
    private final ScheduledExecutorService timers;
    private final LongSupplier nanoTime;
    private final Transport transport;
    private final Opening opening;
    private final SessionOptions options;
    private final SessionBuffer buffer;
    private final DeliveryTracker tracker;
    private final CreditWindow window;
    private final Responses responses;
    private final Backoff backoff;
    private final Watchdog watchdog;
    private final RequestSender sender;
    private final CompletableFuture<@Nullable FeedmuxException> opened = new CompletableFuture<>();
    private final CompletableFuture<Void> done = new CompletableFuture<>();

    private Transport.@Nullable Stream stream;
    private @Nullable ScheduledHandle pause;
    /** Ends the session while the client waits for it to close. */
    private @Nullable ScheduledHandle closeTimer;

    /** {@link #warnUnconfirmed} has logged it. */
    private final AtomicBoolean warned = new AtomicBoolean();

    private State state = State.OPENING;
    private long openedAt;
    private @Nullable Long giveUpAt;
    /** Ends the session at {@code giveUpAt}, also in the middle of an attempt. */
    private @Nullable ScheduledHandle givingUp;
    /** The error of the last failed attempt since a stream was open. */
    private @Nullable FeedmuxException lastError;

    private String route;
    private long openAcked;
    /** The present stream asked for {@link Start#snapshot}. */
    private boolean askedForCopy;

    /** That of the copy that the server announced last: of the batches that arrive after it. */
    private long generation;

    private int limitBytes;
    /** Whether this stream began with a rewind. */
    private boolean rewound;

    private FeedPosition begins = FeedPosition.NONE;
    /** What was acked when the server said that the stored position was moved; null once a stream was opened after that. */
    private @Nullable FeedPosition movedFrom;

    Connection(Transport transport, Opening opening, SessionOptions options, SessionBuffer buffer) {
        this(
                transport,
                opening,
                options,
                buffer,
                TIMERS,
                System::nanoTime,
                () -> ThreadLocalRandom.current().nextDouble());
    }

    Connection(
            Transport transport,
            Opening opening,
            SessionOptions options,
            SessionBuffer buffer,
            ScheduledExecutorService timers,
            LongSupplier nanoTime,
            DoubleSupplier random) {
        this.timers = timers;
        this.nanoTime = nanoTime;
        this.transport = transport;
        this.opening = opening;
        this.options = options;
        this.buffer = buffer;
        tracker = new DeliveryTracker(opening.durable(), buffer, options.windowBytes(), buffer::acked);
        window = new CreditWindow(options.windowEvents(), options.windowBytes());
        responses = new Responses(options.format() != Format.BSON);
        backoff = new Backoff(options.backoffFirst(), options.backoffMost(), random);
        watchdog = new Watchdog(context, timers, nanoTime, this::silent);
        sender = new RequestSender(opening.durable(), options.ackInterval(), buffer, tracker, window, context, timers);
        limitBytes = options.messageBytesMax();
        route = opening.feed() != null
                ? Messages.route(opening.feed())
                : transport.routes().getOrDefault(opening.subscription(), "");
    }

    /** Completes with null when the session is open for the first time, or with the error that prevents it. */
    CompletableFuture<@Nullable FeedmuxException> opened() {
        return opened;
    }

    @Override
    public CompletableFuture<Void> done() {
        return done;
    }

    void start() {
        buffer.setWake(() -> context.execute(this::wake));
        transport.remember(this);
        context.execute(() -> {
            if (state != State.ENDED) {
                giveUpAfter(options.openTimeout());
                connect();
            }
        });
    }

    /** Ends the session at once, without notifying the server. */
    void abandon() {
        context.execute(() -> abandon(null));
    }

    /** Ends a closing session after this time, if it has not ended by then. */
    void abandonAfter(long nanos) {
        context.execute(() -> {
            if (state != State.ENDED && closeTimer == null) {
                closeTimer = context.schedule(() -> abandon(null), nanos, TimeUnit.NANOSECONDS, timers);
            }
        });
    }

    /** Ends a session that is no longer referenced, at once unless it was closed. */
    void dropped() {
        if (!buffer.closing()) {
            abandon();
        }
    }

    /** Logs once that the server has not confirmed all acks. Called after a close and the end. */
    void warnUnconfirmed() {
        if (sender.hasUnconfirmedAcks() && warned.compareAndSet(false, true)) {
            LOG.log(
                    System.Logger.Level.WARNING,
                    "the session was closed before the server confirmed all acks: the next session may repeat their"
                            + " events");
        }
    }

    /** Closes the session as the user's close does, within closeTimeout, but later calls get an error. */
    @Override
    public void closeWithClient() {
        context.execute(() -> {
            if (state == State.ENDED) {
                return;
            }
            buffer.closeWithClient();
            closeStream();
            if (state == State.ENDED) {
                end(Transport.clientClosed());
            } else {
                abandonAfter(options.closeTimeout().toNanos());
            }
        });
    }

    /** Handles a wake of the buffer: acks or taken batches reached a threshold, or the session is closing. */
    private void wake() {
        if (state == State.ENDED) {
            return;
        }
        if (buffer.closing()) {
            closeStream();
        }
        if (state == State.ENDED) {
            end(null);
        } else if (state.hasStream()) {
            sender.sendDue();
        }
    }

    /** Closes the present stream. Without one, opens one more if the server may not have some acks. */
    private void closeStream() {
        boolean waited = state == State.WAITING;
        move(closeEvent());
        if (waited && state == State.LAST_OPENING && pause != null) {
            pause.cancel();
            reconnect();
        }
    }

    private Event closeEvent() {
        return sender.hasUnconfirmedAcks() ? Event.CLOSE_WITH_ACKS : Event.CLOSE;
    }

    /** Changes the state as the table says, and returns what else to do. */
    private Action move(Event event) {
        Transition transition = ConnectionStates.after(state, event);
        state = transition.next();
        return transition.action();
    }

    private void abandon(@Nullable FeedmuxException error) {
        if (state != State.ENDED) {
            move(Event.ABANDON);
            end(error);
        }
    }

    // --- Streams.

    private void reconnect() {
        pause = null;
        move(Event.BACKOFF_OVER);
        connect();
    }

    private void connect() {
        responses.reset();
        watchdog.start(options.heartbeat());
        Incoming incoming = new Incoming();
        Transport.Stream begun = transport.subscribe(route, incoming);
        incoming.stream = stream = begun;
        begun.send(openRequest());
        begun.request(1);
    }

    private dev.feedmux.v1.SubscribeRequest openRequest() {
        dev.feedmux.v1.Open.Builder open = dev.feedmux.v1.Open.newBuilder()
                .setFormat(Messages.format(options.format()))
                .setInstanceId(opening.instanceId())
                .setCredit(Messages.creditOf(buffer.open(window)))
                .setTakeover(options.takeover() && state.isFirstOpening())
                .setHeartbeatInterval(Messages.duration(options.heartbeat()))
                .setMessageBytesMax(options.messageBytesMax());
        openAcked = buffer.acked();
        if (opening.feed() == null) {
            open.setSubscription(opening.subscription());
            FeedPosition feedPosition = tracker.ackedPosition(openAcked);
            if (!feedPosition.isEmpty()) {
                open.setLastAcked(Messages.lastAcked(feedPosition, buffer.epoch()));
            }
        } else {
            open.setFeed(opening.feed());
            Position reached = tracker.latest().position();
            Start start = reached.isEmpty() ? opening.start() : Start.after(reached);
            askedForCopy = start instanceof Start.Snapshot;
            if (start != null) {
                open.setStart(Messages.start(start));
            }
        }
        return dev.feedmux.v1.SubscribeRequest.newBuilder().setOpen(open).build();
    }

    /** Receives the messages of one stream, and ignores them once there is another stream. */
    private final class Incoming implements Transport.Receiver {
        private Transport.@Nullable Stream stream;

        @Override
        public void message(byte[] message) {
            context.execute(() -> {
                Transport.Stream mine = stream;
                if (mine != null && mine == Connection.this.stream) {
                    receive(message);
                    mine.request(1);
                }
            });
        }

        @Override
        public void ended(@Nullable FeedmuxException error) {
            context.execute(() -> {
                if (stream == Connection.this.stream) {
                    lost(error != null ? error : unavailable("the server ended the stream"));
                }
            });
        }
    }

    private void giveUpAfter(Duration patience) {
        giveUpAt = nanoTime.getAsLong() + patience.toNanos();
        givingUp = context.schedule(
                () -> timeOver(lastError != null ? lastError : notOpened(patience)),
                patience.toNanos(),
                TimeUnit.NANOSECONDS,
                timers);
    }

    private void timeOver(FeedmuxException error) {
        Action action = move(Event.TIME_OVER);
        end(action == Action.RAISE ? located(error) : null);
    }

    private void giveUpNever() {
        giveUpAt = null;
        if (givingUp != null) {
            givingUp.cancel();
            givingUp = null;
        }
    }

    private static FeedmuxException notOpened(Duration patience) {
        return new UnavailableException(Failure.of(
                Status.Code.DEADLINE_EXCEEDED,
                "the server did not open the session within " + Durations.text(patience)));
    }

    private void silent() {
        if (stream != null) {
            transport.leave(stream);
        }
        lost(unavailable("the server sent nothing for " + Durations.text(watchdog.silence())));
    }

    private void lost(FeedmuxException error) {
        dropStream(error.getMessage());
        if (buffer.closing()) {
            move(closeEvent());
        }
        if (state == State.ENDED) {
            end(null);
            return;
        }
        boolean wasOpen = state.hasStream();
        Action action = move(Recovery.nextStep(error, wasOpen && transport.renewsToken()).ending);
        if (state == State.ENDED) {
            end(action == Action.RAISE ? located(error) : null);
            return;
        }
        long now = nanoTime.getAsLong();
        if (wasOpen) {
            backoff.lived(Duration.ofNanos(now - openedAt));
            if (options.reconnectTimeout() != null) {
                giveUpAfter(options.reconnectTimeout());
            }
        }
        lastError = error;
        if (action == Action.FORGET) {
            if (movedFrom == null) { // otherwise it was moved twice before a stream was open
                movedFrom = tracker.ackedPosition(buffer.acked());
            }
            forget();
        }
        Duration delay = backoff.next(error.retryAfter());
        if (giveUpAt != null && now + delay.toNanos() - giveUpAt > 0) {
            timeOver(error);
            return;
        }
        if (state.isFirstOpening()) {
            String when = Durations.text(delay);
            LOG.log(System.Logger.Level.INFO, "not open yet, trying again in {0}: {1}", when, error.getMessage());
        } else {
            buffer.put(new Entry.QueuedNotice(new Notice.Disconnected(error, delay)));
        }
        pause = context.schedule(this::reconnect, delay.toNanos(), TimeUnit.NANOSECONDS, timers);
    }

    private void dropStream(String why) {
        watchdog.stop();
        sender.disconnect();
        if (stream != null) {
            stream.cancel(why);
            stream = null;
        }
    }

    /** Cleans up once the state is ENDED, and puts Ended as the last entry. */
    private void end(@Nullable FeedmuxException error) {
        dropStream("the session has ended");
        giveUpNever();
        if (pause != null) {
            pause.cancel();
        }
        if (closeTimer != null) {
            closeTimer.cancel();
        }
        transport.forget(this);
        if (buffer.closing()) {
            warnUnconfirmed();
        }
        buffer.put(new Entry.Ended(error));
        opened.complete(error != null ? error : new SessionClosedException("the session was closed while opening"));
        done.complete(null);
    }

    private void defect(Throwable defect) {
        LOG.log(System.Logger.Level.ERROR, "a session ended because of a bug in the client", defect);
        FeedmuxException error =
                new FeedmuxException(Failure.of(Status.Code.INTERNAL, "a bug in the client: " + defect));
        error.initCause(defect);
        abandon(error);
    }

    private FeedmuxException located(FeedmuxException error) {
        if (!(error instanceof FeedInvalidatedException)) {
            return error;
        }
        FeedmuxException located = new FeedInvalidatedException(error.failure().at(tracker.latest()));
        located.initCause(error);
        return located;
    }

    // --- Messages.

    private void receive(byte[] message) {
        watchdog.heard();
        try {
            if (message.length > limitBytes) {
                throw new ProtocolException(
                        "a message of " + message.length + " bytes, over the limit of " + limitBytes);
            }
            Response response = responses.read(message);
            boolean isOpened = response instanceof Response.Opened;
            if (response != null && ConnectionStates.find(state, isOpened ? Event.OPENED : Event.MESSAGE) == null) {
                throw new ProtocolException(isOpened ? "Opened came twice" : "the first message was not Opened");
            }
            if (response instanceof Response.Delivery delivery) {
                deliver(delivery);
            } else if (response instanceof Response.Progress progress) {
                tracker.progress(progress.feedPosition());
                buffer.publish(tracker.received(), tracker.latest());
                backoff.reset();
            } else if (response instanceof Response.Committed committed) {
                buffer.publishCommitted(committed.position());
                sender.confirm(committed.sequence());
            } else if (response instanceof Response.Opened it) {
                if (askedForCopy && it.copying() == null) {
                    throw new SnapshotUnsupportedException("has opened the feed at the present");
                }
                opened(it);
            } else if (response instanceof Response.Told told) {
                told(told.notice());
            }
        } catch (ProtocolException | SnapshotUnsupportedException error) {
            lost(error);
        }
    }

    private void deliver(Response.Delivery delivery) {
        Batch batch = delivery.batch();
        window.receive(batch.size(), batch.sizeBytes(), () -> batch.eventBytes(batch.size() - 1));
        batch.markGeneration(generation);
        boolean mayRepeat = tracker.expectsRepeats();
        long repeatedEvents = batch.size();
        long repeatedBytes = batch.sizeBytes();
        for (Batch fresh : tracker.arrive(delivery.firstSequence(), batch)) {
            repeatedEvents -= fresh.size();
            repeatedBytes -= fresh.sizeBytes();
            buffer.put(new Entry.Events(fresh));
        }
        buffer.publish(tracker.received(), tracker.latest());
        if (mayRepeat) {
            window.discard(repeatedEvents, repeatedBytes);
            // Events delivered before the reconnect get a sequence only now, so their acks can be sent.
            sender.flush();
        }
    }

    private void opened(Response.Opened it) {
        openedAt = nanoTime.getAsLong();
        boolean isFirst = state.isFirstOpening();
        boolean wasMoved = movedFrom != null;
        FeedPosition hadReached = movedFrom != null ? movedFrom : tracker.ackedPosition(openAcked);
        movedFrom = null;
        begins = it.feedPosition();
        rewound = false;
        if (!isFirst && opening.durable() && !it.atLastAcked()) {
            if (begins.isBefore(hadReached)) {
                rewind(Notice.Rewound.between(begins, hadReached));
            } else if (wasMoved && hadReached.isBefore(begins) && it.copying() == null) {
                // The Open had no last_acked, so the server cannot tell. A copy leaves nothing out.
                buffer.put(new Entry.QueuedNotice(Notice.Skipped.between(hadReached, begins)));
            }
        }
        tracker.begin(begins, openAcked);
        tracker.withinCopy(it.copying() != null);
        window.limit(it.creditEventsMax(), it.creditBytesMax());
        if (it.messageBytesMax() > 0) {
            limitBytes = Math.min(options.messageBytesMax(), it.messageBytesMax());
        }
        if (!it.heartbeat().isZero() && !it.heartbeat().isNegative()) {
            watchdog.start(it.heartbeat());
        }
        if (!it.routingKey().isEmpty()) {
            route = it.routingKey();
            if (opening.durable()) {
                transport.routes().put(opening.subscription(), route);
            }
        }
        buffer.publishOpened(it.epoch(), it.copying());
        if (isFirst || wasMoved) {
            buffer.publishBegin(tracker.received(), begins);
        }
        if (it.copying() != null) {
            generation = it.copying().generation();
        }
        buffer.publish(tracker.received(), tracker.latest());
        move(Event.OPENED);
        lastError = null;
        giveUpNever();
        sender.connect(stream, it.unackedEventsMax());
        opened.complete(null);
    }

    private void told(Notice notice) {
        if (notice instanceof Notice.Rewound it) {
            if (!rewound) { // otherwise the client has noticed what the server announces
                rewind(it);
                tracker.begin(begins, openAcked);
                buffer.publish(tracker.received(), tracker.latest());
                sender.flush();
            }
            return;
        }
        if (notice instanceof Notice.Draining) {
            sender.flush();
        } else if (notice instanceof Notice.SnapshotProgress running) {
            generation = running.status().generation();
            tracker.withinCopy(true);
        } else if (notice instanceof Notice.SnapshotComplete complete) {
            generation = complete.generation();
            tracker.withinCopy(false);
        } else if (notice instanceof Notice.Gap gap && gap.reason().equals("TIMELINE_FORKED")) {
            // Events from before the gap come once more after it, and are no repeats. For the server, what it has sent
            // before counts as acknowledged.
            tracker.forget();
        }
        buffer.put(new Entry.QueuedNotice(notice));
    }

    /** The stream begins before what was acknowledged. What was delivered comes again, acknowledged or not. */
    private void rewind(Notice.Rewound it) {
        forget();
        buffer.publishBegin(tracker.received(), begins);
        buffer.put(new Entry.QueuedNotice(it));
        rewound = true;
    }

    private void forget() {
        tracker.forget();
        buffer.forget(window, tracker.received());
        sender.settle(tracker.received());
    }

    private static UnavailableException unavailable(String why) {
        return new UnavailableException(Failure.of(Status.Code.UNAVAILABLE, why));
    }

    private static ScheduledExecutorService timers() {
        ScheduledThreadPoolExecutor timers = new ScheduledThreadPoolExecutor(1, work -> {
            Thread thread = new Thread(work, "feedmux-timer");
            thread.setDaemon(true);
            return thread;
        });
        timers.setRemoveOnCancelPolicy(true);
        return timers;
    }
}
