package dev.feedmux;

/**
 * How long a server has said nothing, in time during which this process ran. It is measured in ticks, ten in a heartbeat
 * interval, and a tick counts twice its length at most: after the process was stopped, what arrived meanwhile is read
 * before the silence is too long. The tick after a message counts nothing, because a part of it was before the message.
 * Pure; {@link Watchdog} has the timer.
 */
final class Silence {
    private static final int INTERVALS_MAX = 3;
    private static final int TICKS = 10;

    private long intervalNanos;
    private long tickedAt;
    private long nanos;
    private boolean heard;

    /** A stream begins, or the server has stated its interval. */
    void start(long intervalNanos, long now) {
        this.intervalNanos = intervalNanos;
        tickedAt = now;
        nanos = 0;
        heard = false;
    }

    /** A message arrived. */
    void heard() {
        heard = true;
    }

    /** The time between two ticks. */
    long tickNanos() {
        return intervalNanos / TICKS;
    }

    /** The silence that is too long. */
    long mostNanos() {
        return INTERVALS_MAX * intervalNanos;
    }

    /** A tick; true where the silence is too long. */
    boolean tick(long now) {
        nanos = heard ? 0 : nanos + Math.min(now - tickedAt, 2 * tickNanos());
        heard = false;
        tickedAt = now;
        return nanos >= mostNanos();
    }
}
