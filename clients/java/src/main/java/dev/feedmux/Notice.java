package dev.feedmux;

import dev.feedmux.errors.FeedmuxException;
import java.time.Duration;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/** What a session has to say besides events. */
public sealed interface Notice extends Item {
    /**
     * The server goes away. The session reconnects by itself.
     *
     * @param deadline within which the server ends the stream
     * @param position up to which the session has been sent everything
     */
    record Draining(Duration deadline, Position position) implements Notice {}

    /**
     * The session begins behind events that were delivered before; they come again.
     *
     * @param beginsAt where it begins
     * @param hadReached how far an earlier session had come
     */
    record Rewound(BsonTimestamp beginsAt, BsonTimestamp hadReached) implements Notice {
        static Rewound between(Place begins, Place reached) {
            return new Rewound(orZero(begins.clusterTime()), orZero(reached.clusterTime()));
        }

        private static BsonTimestamp orZero(@Nullable BsonTimestamp time) {
            return time == null ? new BsonTimestamp(0) : time;
        }
    }

    /**
     * The position will leave MongoDB's oplog.
     *
     * @param remaining the time left at the oplog's present rate
     */
    record HistoryAtRisk(Duration remaining) implements Notice {}

    /**
     * Events are lost. Only under {@link OnHistoryLost#EARLIEST}.
     *
     * @param after the last place before the gap
     * @param before the first place behind it
     * @param reason why
     */
    record Gap(BsonTimestamp after, BsonTimestamp before, String reason) implements Notice {}

    /**
     * MongoDB or Redis is away, or back. The server keeps trying.
     *
     * @param dependency {@code source} or {@code state}
     * @param away false when it is back
     */
    record Degraded(String dependency, boolean away) implements Notice {}

    /**
     * The client lost the server and tries again.
     *
     * @param error how it was lost
     * @param retryIn when it tries again
     */
    record Disconnected(FeedmuxException error, Duration retryIn) implements Notice {}
}
