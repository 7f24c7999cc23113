package dev.feedmux;

import dev.feedmux.CreditWindow.Grant;
import io.grpc.SynchronizationContext;
import io.grpc.SynchronizationContext.ScheduledHandle;
import java.time.Duration;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * Sends acks, credit and Close. Acks are sent together: when half of the permitted unacked events are acked, else after
 * an interval. Used within the connection's context only.
 */
final class RequestSender {
    private final boolean durable;
    private final Duration ackInterval;
    private final SessionBuffer buffer;
    private final DeliveryTracker tracker;
    private final CreditWindow window;
    private final SynchronizationContext context;
    private final ScheduledExecutorService timers;
    private Transport.@Nullable Stream stream;
    private @Nullable ScheduledHandle ackTimer;
    private long ackStep = SessionBuffer.NEVER;
    private long flushed;
    private long sentSequence;
    private long confirmedSequence;
    private long confirmed;

    RequestSender(
            boolean durable,
            Duration ackInterval,
            SessionBuffer buffer,
            DeliveryTracker tracker,
            CreditWindow window,
            SynchronizationContext context,
            ScheduledExecutorService timers) {
        this.durable = durable;
        this.ackInterval = ackInterval;
        this.buffer = buffer;
        this.tracker = tracker;
        this.window = window;
        this.context = context;
        this.timers = timers;
    }

    /**
     * Attaches an open stream, and handles acks, taken events and a close that did not wake without a stream. 0 means
     * no limit.
     */
    void connect(Transport.@Nullable Stream opened, long unackedEventsMax) {
        stream = opened;
        sentSequence = confirmedSequence = 0;
        ackStep = unackedEventsMax > 0 ? Math.max(1, unackedEventsMax / 2) : SessionBuffer.NEVER;
        flush();
        sendDue();
    }

    /** Detaches the stream. */
    void disconnect() {
        stream = null;
        stopTimer();
        buffer.disarm();
    }

    /** Sends what is due: a close, credit, acks. */
    void sendDue() {
        Transport.Stream open = stream;
        if (open == null) {
            return;
        }
        if (buffer.closing()) {
            sendAcks(open);
            open.send(Messages.CLOSE);
            disconnect();
            return;
        }
        Grant grant = buffer.refill(window);
        if (grant != null) {
            open.send(Messages.credit(grant));
        }
        // The alarm is armed before the acks are read, so an ack in between wakes it again and is not missed.
        if (durable && buffer.alarmAt(flushed + 1)) {
            if (buffer.alarmAt(flushed + ackStep)) {
                flush();
            } else if (ackTimer == null) {
                ackTimer = context.schedule(this::flush, ackInterval.toNanos(), TimeUnit.NANOSECONDS, timers);
            }
        }
    }

    /** Sends the acks now. */
    void flush() {
        stopTimer();
        Transport.Stream open = stream;
        if (open != null) {
            sendAcks(open);
            context.execute(this::sendDue);
        }
    }

    /** Handles the server's confirmation that it has stored the acks up to a sequence. */
    void confirm(long sequence) {
        confirmedSequence = sequence;
        settleFlushed();
    }

    /** The server need not confirm acks up to this number: the stored position was moved, so they have no meaning. */
    void settle(long ordinal) {
        confirmed = ordinal;
    }

    /** Whether the server may not have some acks. */
    boolean hasUnconfirmedAcks() {
        return durable && buffer.acked() > confirmed;
    }

    private void sendAcks(Transport.Stream open) {
        if (!durable) {
            return;
        }
        flushed = buffer.acked();
        long sequence = tracker.ackedSequence(flushed);
        if (sequence > sentSequence) {
            sentSequence = sequence;
            open.send(Messages.ack(sequence));
        } else {
            settleFlushed();
        }
    }

    private void settleFlushed() {
        // Acks of events that the server does not deliver again, because it was moved past them, are never sent.
        if (confirmedSequence >= sentSequence && !tracker.owesAcks(flushed)) {
            confirmed = Math.max(confirmed, flushed);
        }
    }

    private void stopTimer() {
        if (ackTimer != null) {
            ackTimer.cancel();
            ackTimer = null;
        }
    }
}
