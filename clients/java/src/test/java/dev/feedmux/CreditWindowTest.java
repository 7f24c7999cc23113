package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.feedmux.CreditWindow.Grant;
import dev.feedmux.errors.ProtocolException;
import java.util.Random;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.RepetitionInfo;
import org.junit.jupiter.api.Test;

final class CreditWindowTest {
    @Test
    void refillsWhenAQuarterWasTaken() {
        CreditWindow window = new CreditWindow(100, 1000);
        assertEquals(new Grant(100, 1000), window.open(0, 0));
        window.receive(100, 200, () -> 1);
        assertNull(window.refill(24, 48));
        assertEquals(new Grant(25, 50), window.refill(25, 50));
        assertEquals(50, window.refillEventsAt());
    }

    @Test
    void whatWaitsIsNotGrantedAgainAfterAReconnect() {
        CreditWindow window = new CreditWindow(100, 1000);
        window.open(0, 0);
        window.receive(60, 600, () -> 1);
        assertEquals(new Grant(50, 500), window.open(10, 100));
    }

    @Test
    void repeatsCountAsTaken() {
        CreditWindow window = new CreditWindow(100, 1000);
        window.open(0, 0);
        window.receive(40, 400, () -> 1);
        window.discard(40, 400);
        assertEquals(new Grant(40, 400), window.refill(0, 0));
    }

    @Test
    void theServerClampsTheWindow() {
        CreditWindow window = new CreditWindow(100, 1000);
        window.open(0, 0);
        window.limit(10, 0);
        assertThrows(ProtocolException.class, () -> window.receive(11, 11, () -> 1));
        assertEquals(new Grant(100, 1000), window.open(11, 11), "the next server limits it no longer");
    }

    @Test
    void aServerThatAllowsLessThanTheOneBeforeIsGrantedMore() {
        CreditWindow window = new CreditWindow(100, 1000);
        window.open(0, 0);
        window.receive(5, 1500, () -> 600);
        assertEquals(new Grant(0, 0), window.open(0, 0), "the bytes are used up");
        window.limit(10, 0);
        assertEquals(new Grant(10, 1000), window.refill(5, 1500));
    }

    @Test
    void oneEventMayOverdrawTheBytes() {
        CreditWindow window = new CreditWindow(100, 1000);
        window.open(0, 0);
        window.receive(2, 1500, () -> 501);
        assertEquals(new Grant(1, 499), window.refill(1, 499));
        assertThrows(ProtocolException.class, () -> window.receive(1, 1, () -> 1), "the debt is paid first");
        CreditWindow other = new CreditWindow(100, 1000);
        other.open(0, 0);
        assertThrows(ProtocolException.class, () -> other.receive(2, 1500, () -> 500));
    }

    @RepeatedTest(100)
    void neverStallsAndNeverExceeds(RepetitionInfo run) {
        Random random = new Random(run.getCurrentRepetition());
        long events = 1L + random.nextInt(50);
        long bytes = 1L + random.nextInt(500);
        CreditWindow window = new CreditWindow(events, bytes);
        Grant open = window.open(0, 0);
        long eventCredit = open.events();
        long byteCredit = open.bytes();
        long waitingEvents = 0;
        long waitingBytes = 0;
        long takenEvents = 0;
        long takenBytes = 0;
        for (int step = 0; step < 300; step++) {
            if (eventCredit > 0 && byteCredit > 0) {
                long size = 1L + random.nextInt(100);
                window.receive(1, size, () -> size);
                eventCredit--;
                byteCredit -= size;
                waitingEvents++;
                waitingBytes += size;
            } else {
                assertTrue(waitingEvents > 0, "nothing waits, and nothing may be sent");
                takenEvents += waitingEvents;
                takenBytes += waitingBytes;
                waitingEvents = 0;
                waitingBytes = 0;
                Grant grant = window.refill(takenEvents, takenBytes);
                if (grant != null) {
                    eventCredit += grant.events();
                    byteCredit += grant.bytes();
                }
            }
            assertTrue(eventCredit + waitingEvents <= events && byteCredit + waitingBytes <= bytes);
        }
    }
}
