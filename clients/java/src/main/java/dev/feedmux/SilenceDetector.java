package dev.feedmux;

/**
 * Measures how long a server has sent nothing while this process ran. The unit is a tick, a tenth of a heartbeat
 * interval, and a tick counts at most twice its length: if the process was suspended, it reads what arrived meanwhile
 * before the silence is too long. The tick after a message does not count, because a part of it was before the message.
 * Free of side effects; {@link Watchdog} has the timer.
 */
final class SilenceDetector {
    private static final int INTERVALS_MAX = 3;
    private static final int TICKS = 10;

    private long intervalNanos;
    private long tickedAt;
    private long nanos;
    private boolean heard;

    /** Restarts the measurement: a stream begins, or the server has stated its interval. */
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

    /** The limit of silence. */
    long mostNanos() {
        return INTERVALS_MAX * intervalNanos;
    }

    /** Counts a tick; true if the silence is too long. */
    boolean tick(long now) {
        nanos = heard ? 0 : nanos + Math.min(now - tickedAt, 2 * tickNanos());
        heard = false;
        tickedAt = now;
        return nanos >= mostNanos();
    }
}
