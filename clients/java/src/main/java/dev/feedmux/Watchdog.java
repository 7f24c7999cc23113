package dev.feedmux;

import io.grpc.SynchronizationContext;
import io.grpc.SynchronizationContext.ScheduledHandle;
import java.time.Duration;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/** Notices a server that has said nothing for three heartbeat intervals. Used within the runner's context only. */
final class Watchdog {
    private static final int SILENT_INTERVALS = 3;

    private final SynchronizationContext context;
    private final ScheduledExecutorService timers;
    private final Runnable cut;
    private @Nullable ScheduledHandle timer;
    private long intervalNanos;
    private long heardAt;

    /** {@code cut} is run once when the silence is too long. */
    Watchdog(SynchronizationContext context, ScheduledExecutorService timers, Runnable cut) {
        this.context = context;
        this.timers = timers;
        this.cut = cut;
    }

    /** A stream begins, or the server has stated its interval. */
    void start(Duration interval) {
        stop();
        intervalNanos = interval.toNanos();
        heard();
        watch(System.nanoTime() + silenceNanos());
    }

    void heard() {
        heardAt = System.nanoTime();
    }

    void stop() {
        if (timer != null) {
            timer.cancel();
            timer = null;
        }
    }

    /** How long it waits. */
    Duration silence() {
        return Duration.ofNanos(silenceNanos());
    }

    private long silenceNanos() {
        return SILENT_INTERVALS * intervalNanos;
    }

    private void watch(long dueAt) {
        long delay = Math.max(0, dueAt - System.nanoTime());
        timer = context.schedule(() -> check(dueAt), delay, TimeUnit.NANOSECONDS, timers);
    }

    private void check(long dueAt) {
        long now = System.nanoTime();
        long silentUntil = heardAt + silenceNanos();
        if (now - silentUntil < 0) {
            watch(silentUntil);
        } else if (now - dueAt > intervalNanos) {
            // This process was stopped, not the server: what arrived meanwhile has not been read yet.
            watch(now + intervalNanos);
        } else {
            timer = null;
            cut.run();
        }
    }
}
