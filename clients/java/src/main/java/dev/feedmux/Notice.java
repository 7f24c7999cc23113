package dev.feedmux;

import dev.feedmux.errors.FeedmuxException;
import java.time.Duration;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/** Information that a session reports in addition to events. */
public sealed interface Notice extends Item {
    /**
     * The server is shutting down, or the session has reached its maximum age. The session reconnects automatically.
     *
     * @param deadline the time within which the server ends the stream
     * @param position the position up to which the server has sent everything to the session
     */
    record Draining(Duration deadline, Position position) implements Notice {
        @Override
        public String toString() {
            return "the server ends the stream within " + Durations.text(deadline) + ", and the session reconnects";
        }
    }

    /**
     * The session begins before events that were already delivered, and delivers them again.
     *
     * @param beginsAt the cluster time at which the session begins
     * @param hadReached the cluster time that an earlier session had reached
     */
    record Rewound(BsonTimestamp beginsAt, BsonTimestamp hadReached) implements Notice {
        static Rewound between(FeedPosition begins, FeedPosition reached) {
            return new Rewound(orZero(begins), orZero(reached));
        }

        @Override
        public String toString() {
            return "the session begins at " + text(beginsAt) + ", before " + text(hadReached)
                    + ", which it had reached: the events in between come again";
        }
    }

    /**
     * Another session or a seek moved the stored position forward, so this session skips events that it has not
     * received.
     *
     * @param hadReached the cluster time up to which this session had acked
     * @param beginsAt the cluster time at which the session begins now
     * @param hadReachedPosition {@code hadReached} as a position for {@link Start#after}; {@link Position#NONE} if it
     *     is unknown
     * @param beginsAtPosition {@code beginsAt} as a position for {@link Start#after}; {@link Position#NONE} if it is
     *     unknown
     */
    record Skipped(
            BsonTimestamp hadReached, BsonTimestamp beginsAt, Position hadReachedPosition, Position beginsAtPosition)
            implements Notice {
        static Skipped between(FeedPosition reached, FeedPosition begins) {
            return new Skipped(orZero(reached), orZero(begins), reached.position(), begins.position());
        }

        @Override
        public String toString() {
            return "another session or a seek moved the stored position from " + text(hadReached) + " to "
                    + text(beginsAt) + ": this session does not deliver the events in between";
        }
    }

    /**
     * The position will soon leave MongoDB's oplog.
     *
     * @param remaining the time left at the oplog's current rate of growth
     */
    record HistoryAtRisk(Duration remaining) implements Notice {
        @Override
        public String toString() {
            return "the position leaves MongoDB's oplog in about " + Durations.text(remaining)
                    + ": read faster, or enlarge the oplog";
        }
    }

    /**
     * Events are lost. After a restore of MongoDB ({@code TIMELINE_FORKED}), {@code before} is the earlier one. All
     * available events follow with {@link OnHistoryLost#EARLIEST}, and the existing documents with
     * {@link OnHistoryLost#SNAPSHOT}.
     *
     * @param after the cluster time of the last position before the gap
     * @param before the cluster time of the first position after the gap
     * @param reason why the events are lost
     */
    record Gap(BsonTimestamp after, BsonTimestamp before, String reason) implements Notice {
        @Override
        public String toString() {
            return "events between " + text(after) + " and " + text(before) + " are lost: " + reason;
        }
    }

    /**
     * MongoDB or Redis is unavailable, or available again. The server keeps trying to reach it.
     *
     * @param dependency {@code source} or {@code state}
     * @param unavailable true if the dependency is unavailable, false if it is available again
     */
    record Degraded(String dependency, boolean unavailable) implements Notice {
        @Override
        public String toString() {
            return dependency + (unavailable ? " is unavailable" : " is available again");
        }
    }

    /**
     * The server sends nothing more until some of these events are acked.
     *
     * @param events the number of events that were sent and not acked
     */
    record Unacknowledged(long events) implements Notice {
        @Override
        public String toString() {
            return events + " events are not acked: the server sends no more until some are";
        }
    }

    /**
     * Documents of a copy are still to come.
     *
     * @param status how far the copy is
     */
    record SnapshotProgress(SnapshotStatus status) implements Notice {
        @Override
        public String toString() {
            String estimate = status.documentsEstimated() > 0 ? " of about " + status.documentsEstimated() : "";
            return "documents copied so far: " + status.documents() + estimate;
        }
    }

    /**
     * The copy of existing documents is complete: every event after this is a change. A program that keeps what it has
     * deletes now what it has applied with a lower generation. After an interruption the notice may come again, until
     * an event after it is acknowledged.
     *
     * @param documents the number of documents of the copy; after an interruption, some may count twice
     * @param bytes the size of these documents; 0 if the server does not know it
     * @param readTime the cluster time as of which the last documents were read; null if it is not known
     * @param generation the number of the copy
     */
    record SnapshotComplete(
            long documents, long bytes, @Nullable BsonTimestamp readTime, long generation) implements Notice {
        @Override
        public String toString() {
            return "the existing documents are copied: " + documents + ". Changes follow";
        }
    }

    /**
     * The client lost the connection to the server and will try again.
     *
     * @param error the error that ended the connection
     * @param retryIn the time until the next attempt
     */
    record Disconnected(FeedmuxException error, Duration retryIn) implements Notice {
        @Override
        public String toString() {
            return "disconnected, reconnecting in " + Durations.text(retryIn) + ": " + error.getMessage();
        }
    }

    private static BsonTimestamp orZero(FeedPosition feedPosition) {
        BsonTimestamp time = feedPosition.clusterTime();
        return time == null ? new BsonTimestamp(0) : time;
    }

    private static String text(BsonTimestamp time) {
        return Integer.toUnsignedLong(time.getTime()) + "." + Integer.toUnsignedLong(time.getInc());
    }
}
