package dev.feedmux;

import java.time.Duration;
import java.util.function.DoubleSupplier;
import org.jspecify.annotations.Nullable;

/** Exponential backoff with full jitter: a delay is anywhere between 0 and a bound that doubles. */
final class Backoff {
    private final Duration first;
    private final Duration most;
    private final DoubleSupplier random;
    private Duration bound;

    /** {@code random} gives numbers in [0, 1). */
    Backoff(Duration first, Duration most, DoubleSupplier random) {
        this.first = first;
        this.most = most;
        this.random = random;
        bound = first;
    }

    /** Returns how long to wait now; never less than the server asked for. */
    Duration next(@Nullable Duration atLeast) {
        Duration jitter = Duration.ofNanos((long) (random.getAsDouble() * bound.toNanos()));
        Duration doubled = bound.multipliedBy(2);
        bound = doubled.compareTo(most) < 0 ? doubled : most;
        return atLeast == null ? jitter : atLeast.plus(jitter);
    }

    /** Records how long a stream was open; a stream open for longer than the largest bound resets the backoff. */
    void lived(Duration open) {
        if (open.compareTo(most) > 0) {
            reset();
        }
    }

    /** Resets the bound, because the connection works. */
    void reset() {
        bound = first;
    }
}
