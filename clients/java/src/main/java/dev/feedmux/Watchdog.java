package dev.feedmux;

import io.grpc.SynchronizationContext;
import io.grpc.SynchronizationContext.ScheduledHandle;
import java.time.Duration;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;

/** Detects a server that has sent nothing for three heartbeat intervals. Used within the connection's context only. */
final class Watchdog {
    private final SynchronizationContext context;
    private final ScheduledExecutorService timers;
    private final LongSupplier nanoTime;
    private final Runnable cut;
    private final SilenceDetector silence = new SilenceDetector();
    private @Nullable ScheduledHandle timer;

    /** Runs {@code cut} once when the silence is too long. */
    Watchdog(SynchronizationContext context, ScheduledExecutorService timers, LongSupplier nanoTime, Runnable cut) {
        this.context = context;
        this.timers = timers;
        this.nanoTime = nanoTime;
        this.cut = cut;
    }

    /** Restarts the watch: a stream begins, or the server has stated its interval. */
    void start(Duration interval) {
        stop();
        silence.start(interval.toNanos(), nanoTime.getAsLong());
        schedule();
    }

    void heard() {
        silence.heard();
    }

    void stop() {
        if (timer != null) {
            timer.cancel();
            timer = null;
        }
    }

    /** Returns how long it waits. */
    Duration silence() {
        return Duration.ofNanos(silence.mostNanos());
    }

    private void schedule() {
        timer = context.schedule(this::tick, silence.tickNanos(), TimeUnit.NANOSECONDS, timers);
    }

    private void tick() {
        if (silence.tick(nanoTime.getAsLong())) {
            timer = null;
            cut.run();
        } else {
            schedule();
        }
    }
}
