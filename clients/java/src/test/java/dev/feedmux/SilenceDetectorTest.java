package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

final class SilenceDetectorTest {
    private static final long INTERVAL = 1000;

    private final SilenceDetector silence = new SilenceDetector();
    private long now = 5;

    SilenceDetectorTest() {
        silence.start(INTERVAL, now);
    }

    @Test
    void threeIntervalsAreTooLong() {
        assertEquals(100, silence.tickNanos());
        assertEquals(30, ticksUntilCut());
    }

    @Test
    void anythingHeardBeginsItAgain() {
        for (int ticks = 0; ticks < 29; ticks++) {
            assertFalse(after(100));
        }
        silence.heard();
        assertEquals(31, ticksUntilCut());
    }

    @Test
    void aMessageBetweenTwoTicksIsNotCutEarly() {
        assertFalse(after(100));
        now += 99;
        long heardAt = now;
        silence.heard();
        now += 1;
        assertFalse(silence.tick(now));
        ticksUntilCut();
        assertTrue(now - heardAt >= 3 * INTERVAL, "cut after " + (now - heardAt));
    }

    @Test
    void aBlockOfAnyLengthAddsTwoTicks() {
        assertFalse(after(1_000_000 * INTERVAL));
        assertEquals(28, ticksUntilCut());
    }

    @Test
    void ticksThatComeLateCountInFull() {
        for (int ticks = 0; ticks < 19; ticks++) {
            assertFalse(after(150));
        }
        assertTrue(after(150));
    }

    @Test
    void aStatedIntervalBeginsItAgain() {
        assertFalse(after(100));
        silence.start(2 * INTERVAL, now);
        assertEquals(200, silence.tickNanos());
        assertFalse(after(200));
    }

    private int ticksUntilCut() {
        int ticks = 1;
        while (!after(100)) {
            ticks++;
        }
        return ticks;
    }

    private boolean after(long nanos) {
        now += nanos;
        return silence.tick(now);
    }
}
