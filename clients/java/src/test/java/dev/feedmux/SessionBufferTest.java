package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.feedmux.errors.Failure;
import dev.feedmux.errors.FeedmuxException;
import dev.feedmux.errors.SessionClosedException;
import dev.feedmux.support.Wire;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
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

    @Test
    void noticesOfAnOutageThatNobodyReadsDoNotPileUp() throws Exception {
        Notice.Disconnected first = disconnected("first");
        Notice.Disconnected last = disconnected("last");
        Notice.Degraded away = new Notice.Degraded("source", true);
        Notice.Degraded back = new Notice.Degraded("source", false);
        Notice.Draining draining = new Notice.Draining(Duration.ofSeconds(1), Position.NONE);
        buffer.put(new Entry.QueuedNotice(first));
        buffer.put(events(1, 1));
        for (int i = 0; i < 100; i++) {
            for (Notice each : List.of(first, away, back, draining, last)) {
                buffer.put(new Entry.QueuedNotice(each));
            }
        }
        buffer.put(new Entry.Ended(null));
        assertEquals(first, buffer.next(-1, true, false));
        assertInstanceOf(Event.class, buffer.next(-1, true, false));
        for (Notice each : List.of(away, back, draining, last)) {
            assertEquals(each, buffer.next(-1, true, false));
        }
        assertThrows(SessionClosedException.class, () -> buffer.next(-1, true, false));
    }

    private static Notice.Disconnected disconnected(String why) {
        return new Notice.Disconnected(
                new FeedmuxException(Failure.of(Status.Code.UNAVAILABLE, why)), Duration.ofSeconds(1));
    }

    private static Entry.Events events(int first, int count) {
        Batch batch = BsonBatch.over(Wire.events(first, count), count, FeedPosition.NONE, null);
        batch.number(first, null);
        return new Entry.Events(batch);
    }
}
