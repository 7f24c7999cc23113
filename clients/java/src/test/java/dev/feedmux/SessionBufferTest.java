package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.feedmux.errors.Failure;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.support.Wire;
import io.grpc.Status;
import org.junit.jupiter.api.Test;

final class SessionBufferTest {
    private final SessionBuffer buffer = new SessionBuffer(notice -> {});

    @Test
    void itIsClosedWhenEverythingBeforeTheErrorWasHandedOut() throws Exception {
        buffer.put(events(1, 2));
        buffer.put(new Entry.Ended(new FeedmuxException(Failure.of(Status.Code.INTERNAL, "said"))));
        assertFalse(buffer.isClosed());
        buffer.next(-1, false, false);
        assertFalse(buffer.isClosed(), "one event is left");
        buffer.next(-1, false, false);
        assertTrue(buffer.isClosed());
        assertThrows(FeedmuxException.class, () -> buffer.next(-1, false, false));
    }

    @Test
    void aCopyIsAsFarAsTheNoticesThatWereTakenSay() throws Exception {
        SnapshotStatus first = new SnapshotStatus(2, 0, 0, null, null, "", 7);
        SnapshotStatus second = new SnapshotStatus(3, 0, 0, null, null, "", 7);
        buffer.publishOpened(1, first);
        buffer.put(new Entry.QueuedNotice(new Notice.SnapshotProgress(second)));
        buffer.put(new Entry.QueuedNotice(new Notice.SnapshotComplete(3, 0, null, 7)));
        assertEquals(first, buffer.copying());
        buffer.next(-1, true, false);
        assertEquals(second, buffer.copying());
        buffer.next(-1, true, false);
        assertNull(buffer.copying());
        SnapshotStatus again = new SnapshotStatus(0, 0, 0, null, null, "", 8);
        buffer.put(new Entry.QueuedNotice(new Notice.SnapshotProgress(again)));
        buffer.next(-1, true, false);
        assertEquals(again, buffer.copying());
    }

    @Test
    void anEarlierAckMovesNothing() {
        buffer.ack(5);
        buffer.ack(3);
        assertEquals(5, buffer.acked());
    }

    private static Entry.Events events(int first, int count) {
        Batch batch = BsonBatch.over(Wire.events(first, count), count, FeedPosition.NONE, null);
        batch.number(first, null);
        return new Entry.Events(batch);
    }
}
