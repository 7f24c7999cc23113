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
     * Another session or a seek moved the stored position forward, so events that this session has not been sent are not
     * handed out here.
     *
     * @param hadReached how far this session had acked
     * @param beginsAt where it begins now
     * @param hadReachedPosition {@code hadReached}, for {@link Start#after}; {@link Position#NONE} where it is unknown
     * @param beginsAtPosition {@code beginsAt}, for {@link Start#after}; {@link Position#NONE} where it is unknown
     */
    record Skipped(
            BsonTimestamp hadReached, BsonTimestamp beginsAt, Position hadReachedPosition, Position beginsAtPosition)
            implements Notice {
        @Override
        public String toString() {
            return "another session or a seek moved the stored position from " + text(hadReached) + " to "
                    + text(beginsAt) + ": what lies between is not handed out here";
        }

        private static String text(BsonTimestamp time) {
            return "(" + Integer.toUnsignedLong(time.getTime()) + ", " + Integer.toUnsignedLong(time.getInc()) + ")";
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
