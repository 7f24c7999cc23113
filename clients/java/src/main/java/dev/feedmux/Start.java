package dev.feedmux;

import java.time.Instant;
import java.util.Objects;
import org.bson.BsonDocument;
import org.bson.BsonTimestamp;

/** The position at which a feed begins. */
public sealed interface Start {
    /** Begins at the oldest entry of MongoDB's oplog. */
    record Earliest() implements Start {}

    /** Begins now. */
    record Latest() implements Start {}

    /** Begins with the documents that exist. */
    record Snapshot() implements Start {}

    /** Begins after a position that feedmux issued. */
    record After(Position position) implements Start {
        /** Throws NullPointerException if there is none. */
        public After {
            Objects.requireNonNull(position, "a start needs its position");
        }
    }

    /** Begins after a resume token: MongoDB's resumeAfter. */
    record ResumeAfter(BsonDocument token) implements Start {
        /** Throws NullPointerException if there is none. */
        public ResumeAfter {
            Objects.requireNonNull(token, "a start needs its token");
        }
    }

    /** Begins after a resume token, also that of an invalidate event: MongoDB's startAfter. */
    record StartAfter(BsonDocument token) implements Start {
        /** Throws NullPointerException if there is none. */
        public StartAfter {
            Objects.requireNonNull(token, "a start needs its token");
        }
    }

    /** Begins with the first event at or after a cluster time. */
    record AtOperationTime(BsonTimestamp time) implements Start {
        /** Throws NullPointerException if there is none. */
        public AtOperationTime {
            Objects.requireNonNull(time, "a start needs its time");
        }
    }

    /** Begins with the first event at or after a wall-clock time, in whole seconds. */
    record AtTime(Instant time) implements Start {
        /** Throws NullPointerException if there is none. */
        public AtTime {
            Objects.requireNonNull(time, "a start needs its time");
        }
    }

    /** Begins at the oldest entry of MongoDB's oplog. */
    static Start earliest() {
        return new Earliest();
    }

    /** Begins now. */
    static Start latest() {
        return new Latest();
    }

    /**
     * Begins with the documents that exist, as insert events; every change after them follows.
     * A server that does not know this start is reported with a
     * {@link dev.feedmux.errors.SnapshotUnsupportedException}.
     */
    static Start snapshot() {
        return new Snapshot();
    }

    /** Begins after a position that feedmux issued. */
    static Start after(Position position) {
        return new After(position);
    }

    /** Begins after a resume token: MongoDB's resumeAfter. */
    static Start resumeAfter(BsonDocument token) {
        return new ResumeAfter(token);
    }

    /** Begins after a resume token, also that of an invalidate event: MongoDB's startAfter. */
    static Start startAfter(BsonDocument token) {
        return new StartAfter(token);
    }

    /** Begins with the first event at or after a cluster time. */
    static Start atOperationTime(BsonTimestamp time) {
        return new AtOperationTime(time);
    }

    /** Begins with the first event at or after a wall-clock time, in whole seconds. */
    static Start atTime(Instant time) {
        return new AtTime(time);
    }
}
