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
 * an interval. Used within the runner's context only.
 */
final class Uplink {
    private final boolean durable;
    private final Duration ackInterval;
    private final Desk desk;
    private final Ledger ledger;
    private final CreditWindow window;
    private final SynchronizationContext context;
    private final ScheduledExecutorService timers;
    private Link.@Nullable Stream stream;
    private @Nullable ScheduledHandle ackTimer;
    private long ackStep = Desk.NEVER;
    private long flushed;
    private long sentSequence;

    Uplink(
            boolean durable,
            Duration ackInterval,
            Desk desk,
            Ledger ledger,
            CreditWindow window,
            SynchronizationContext context,
            ScheduledExecutorService timers) {
        this.durable = durable;
        this.ackInterval = ackInterval;
        this.desk = desk;
        this.ledger = ledger;
        this.window = window;
        this.context = context;
        this.timers = timers;
    }

    /**
     * Attaches an open stream, and handles acks, taken events and a close that did not ring without a stream. 0 means
     * no limit.
     */
    void connect(Link.@Nullable Stream opened, long unackedEventsMax) {
        stream = opened;
        sentSequence = 0;
        ackStep = unackedEventsMax > 0 ? Math.max(1, unackedEventsMax / 2) : Desk.NEVER;
        flush();
        look();
    }

    /** Detaches the stream. */
    void disconnect() {
        stream = null;
        stopTimer();
        desk.disarm();
    }

    /** Checks the desk, because something reached a threshold. */
    void look() {
        Link.Stream open = stream;
        if (open == null) {
            return;
        }
        if (desk.closing()) {
            sendAcks(open);
            open.send(Messages.CLOSE);
            disconnect();
            return;
        }
        Grant grant = desk.refill(window);
        if (grant != null) {
            open.send(Messages.credit(grant));
        }
        // The alarm is armed before the acks are read, so an ack in between rings again and is not missed.
        if (durable && desk.alarmAt(flushed + 1)) {
            if (desk.alarmAt(flushed + ackStep)) {
                flush();
            } else if (ackTimer == null) {
                ackTimer = context.schedule(this::flush, ackInterval.toNanos(), TimeUnit.NANOSECONDS, timers);
            }
        }
    }

    /** Sends the acks now. */
    void flush() {
        stopTimer();
        Link.Stream open = stream;
        if (open != null) {
            sendAcks(open);
            context.execute(this::look);
        }
    }

    private void sendAcks(Link.Stream open) {
        if (!durable) {
            return;
        }
        flushed = desk.acked();
        long sequence = ledger.ackedSequence(flushed);
        if (sequence > sentSequence) {
            sentSequence = sequence;
            open.send(Messages.ack(sequence));
        }
    }

    private void stopTimer() {
        if (ackTimer != null) {
            ackTimer.cancel();
            ackTimer = null;
        }
    }
}
