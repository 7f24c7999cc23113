package dev.feedmux;

import java.time.Duration;

/** Durations in texts for people. */
final class Durations {
    private Durations() {}

    /** Returns a text such as "250 ms", "1.5 s", "12 min" or "5 h". */
    static String text(Duration duration) {
        long tenths = Math.round(duration.toMillis() / 100.0);
        if (tenths < 10) {
            return duration.toMillis() + " ms";
        }
        if (tenths < 1_200) {
            return (tenths % 10 == 0 ? "" + tenths / 10 : "" + tenths / 10.0) + " s";
        }
        return duration.toHours() < 2 ? duration.toMinutes() + " min" : duration.toHours() + " h";
    }
}
