package dev.feedmux;

import java.time.Duration;

/** Durations that can be counted in nanoseconds, and durations in texts for people. */
final class Durations {
    /** A long holds twice as many nanoseconds, and no more than three times as many. */
    private static final Duration LONGEST = Duration.ofDays(100 * 365);

    private Durations() {}

    /** Returns the duration, or a hundred years if it is longer: a caller that wants no limit may give any number. */
    static Duration capped(Duration duration) {
        return duration.compareTo(LONGEST) < 0 ? duration : LONGEST;
    }

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
