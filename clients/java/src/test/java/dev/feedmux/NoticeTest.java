package dev.feedmux;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.feedmux.errors.Failure;
import dev.feedmux.errors.UnavailableException;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.bson.BsonTimestamp;
import org.junit.jupiter.api.Test;

/** Tests the texts that the log shows of notices. */
final class NoticeTest {
    @Test
    void durationsAreForPeople() {
        Map<Duration, String> texts = Map.of(
                Duration.ofNanos(1_678), "0 ms",
                Duration.ofMillis(949), "949 ms",
                Duration.ofMillis(999), "1 s",
                Duration.ofMillis(1_500), "1.5 s",
                Duration.ofSeconds(30), "30 s",
                Duration.ofSeconds(150), "2 min",
                Duration.ofHours(30), "30 h");
        texts.forEach((duration, text) -> assertEquals(text, Durations.text(duration)));
    }

    @Test
    void noticesSayWhatHappened() {
        UnavailableException error = new UnavailableException(Failure.of(Status.Code.UNAVAILABLE, "no route"));
        BsonTimestamp early = new BsonTimestamp(1001, 1);
        BsonTimestamp late = new BsonTimestamp(1005, 2);
        List<String> texts = List.of(
                "the server ends the stream within 30 s, and the session reconnects",
                "the session begins at 1001.1, before 1005.2, which it had reached: the events in between come again",
                "the position leaves MongoDB's oplog in about 90 min: read faster, or enlarge the oplog",
                "events between 1001.1 and 1005.2 are lost: OPLOG",
                "source is unavailable",
                "state is available again",
                "1000 events are not acked: the server sends no more until some are",
                "disconnected, reconnecting in 1.5 s: UNAVAILABLE: no route");
        List<Notice> notices = List.of(
                new Notice.Draining(Duration.ofSeconds(30), Position.NONE),
                new Notice.Rewound(early, late),
                new Notice.HistoryAtRisk(Duration.ofMinutes(90)),
                new Notice.Gap(early, late, "OPLOG"),
                new Notice.Degraded("source", true),
                new Notice.Degraded("state", false),
                new Notice.Unacknowledged(1000),
                new Notice.Disconnected(error, Duration.ofMillis(1_500)));
        assertEquals(texts, notices.stream().map(Notice::toString).toList());
    }
}
