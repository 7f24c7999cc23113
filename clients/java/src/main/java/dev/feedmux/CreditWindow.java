package dev.feedmux;

import dev.feedmux.errors.ProtocolException;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;

/**
 * The credit window of a session: how much the server may still send, and when to grant more.
 *
 * <p>Keeps totals over the life of the session, without side effects. Invariant: granted - taken never exceeds the
 * window, so the window limits what waits in the client. {@link Connection} owns the window; the session buffer uses the
 * thresholds to decide when to wake the connection.
 */
final class CreditWindow {
    /** Permission to send more. */
    record Grant(long events, long bytes) {}

    private final Grant chosen;
    /** As chosen, or less, if the server of the present stream allows less. */
    private long eventsMax;

    private long bytesMax;
    private long grantedEvents;
    private long grantedBytes;
    private long receivedEvents;
    private long receivedBytes;
    private long discardedEvents;
    private long discardedBytes;

    CreditWindow(long eventsMax, long bytesMax) {
        chosen = new Grant(eventsMax, bytesMax);
        this.eventsMax = eventsMax;
        this.bytesMax = bytesMax;
    }

    /** Begins a new stream, which voids earlier grants. The first credit leaves room for what still waits. */
    Grant open(long takenEvents, long takenBytes) {
        eventsMax = chosen.events;
        bytesMax = chosen.bytes;
        long waitingEvents = receivedEvents - discardedEvents - takenEvents;
        long waitingBytes = receivedBytes - discardedBytes - takenBytes;
        Grant grant = new Grant(Math.max(0, eventsMax - waitingEvents), Math.max(0, bytesMax - waitingBytes));
        if (grant.events == 0 || grant.bytes == 0) {
            // One without the other brings nothing. A server that clamps it would leave nothing to grant after that.
            grant = new Grant(0, 0);
        }
        grantedEvents = receivedEvents + grant.events;
        grantedBytes = receivedBytes + grant.bytes;
        return grant;
    }

    /**
     * Applies the server's limits: the server clamps unused credit to them, and so does this window. 0 means no limit.
     */
    void limit(long serverEventsMax, long serverBytesMax) {
        if (serverEventsMax > 0) {
            eventsMax = Math.min(eventsMax, serverEventsMax);
            grantedEvents = Math.min(grantedEvents, receivedEvents + serverEventsMax);
        }
        if (serverBytesMax > 0) {
            bytesMax = Math.min(bytesMax, serverBytesMax);
            grantedBytes = Math.min(grantedBytes, receivedBytes + serverBytesMax);
        }
    }

    /**
     * Counts received events. Throws ProtocolException if they exceed the credit. One event may overdraw the bytes, so
     * {@code lastBytes} is called when they are overdrawn.
     */
    void receive(long events, long bytes, LongSupplier lastBytes) {
        receivedEvents += events;
        receivedBytes += bytes;
        if (receivedEvents > grantedEvents) {
            throw new ProtocolException((receivedEvents - grantedEvents) + " events more than the credit granted");
        }
        long overdraft = receivedBytes - grantedBytes;
        if (overdraft > 0 && overdraft >= lastBytes.getAsLong()) {
            throw new ProtocolException(overdraft + " bytes more than the credit granted");
        }
    }

    /** Discounts received events that nobody will take, such as repeats. */
    void discard(long events, long bytes) {
        discardedEvents += events;
        discardedBytes += bytes;
    }

    /** Returns what to grant now; null until a quarter of the window, in events or bytes, has been taken. */
    @Nullable
    Grant refill(long takenEvents, long takenBytes) {
        long events = eventsMax + takenEvents + discardedEvents - grantedEvents;
        long bytes = bytesMax + takenBytes + discardedBytes - grantedBytes;
        if (events < 1 || bytes < 1 || (events < quarter(eventsMax) && bytes < quarter(bytesMax))) {
            return null;
        }
        grantedEvents += events;
        grantedBytes += bytes;
        return new Grant(events, bytes);
    }

    /** The total of events taken at which {@link #refill} will grant more. */
    long refillEventsAt() {
        return grantedEvents - discardedEvents - eventsMax + quarter(eventsMax);
    }

    /** The total of bytes taken at which {@link #refill} will grant more. */
    long refillBytesAt() {
        return grantedBytes - discardedBytes - bytesMax + quarter(bytesMax);
    }

    private static long quarter(long whole) {
        return (whole + 3) / 4;
    }
}
