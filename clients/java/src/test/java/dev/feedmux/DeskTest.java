package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.feedmux.errors.Failure;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.support.Wire;
import io.grpc.Status;
import org.junit.jupiter.api.Test;

final class DeskTest {
    private final Desk desk = new Desk(notice -> {});

    @Test
    void itIsClosedWhenEverythingBeforeTheErrorWasHandedOut() throws Exception {
        desk.put(events(1, 2));
        desk.put(new Entry.Ended(new FeedmuxException(Failure.of(Status.Code.INTERNAL, "said"))));
        assertFalse(desk.isClosed());
        desk.next(-1, false, false);
        assertFalse(desk.isClosed(), "one event is left");
        desk.next(-1, false, false);
        assertTrue(desk.isClosed());
        assertThrows(FeedmuxException.class, () -> desk.next(-1, false, false));
    }

    @Test
    void anEarlierAckMovesNothing() {
        desk.ack(5);
        desk.ack(3);
        assertEquals(5, desk.acked());
    }

    private static Entry.Events events(int first, int count) {
        Batch batch = BsonBatch.over(Wire.events(first, count), count, Place.NOWHERE, null);
        batch.number(first, null);
        return new Entry.Events(batch);
    }
}
