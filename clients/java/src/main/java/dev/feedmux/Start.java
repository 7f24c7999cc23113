package dev.feedmux;

import java.time.Instant;
import org.bson.BsonDocument;
import org.bson.BsonTimestamp;

/** Where to begin: exactly one place. */
public sealed interface Start {
    /** As far back as MongoDB's oplog reaches. */
    record Earliest() implements Start {}

    /** From now. */
    record Latest() implements Start {}

    /** Behind a position that feedmux gave out. */
    record After(Position position) implements Start {}

    /** MongoDB's resumeAfter. */
    record ResumeAfter(BsonDocument token) implements Start {}

    /** MongoDB's startAfter: also behind an invalidate event. */
    record StartAfter(BsonDocument token) implements Start {}

    /** The first event at or after a cluster time. */
    record AtOperationTime(BsonTimestamp time) implements Start {}

    /** The first event at or after a wall-clock time, by the whole second. */
    record AtTime(Instant time) implements Start {}

    /** As far back as MongoDB's oplog reaches. */
    static Start earliest() {
        return new Earliest();
    }

    /** From now. */
    static Start latest() {
        return new Latest();
    }

    /** Behind a position that feedmux gave out. */
    static Start after(Position position) {
        return new After(position);
    }

    /** MongoDB's resumeAfter. */
    static Start resumeAfter(BsonDocument token) {
        return new ResumeAfter(token);
    }

    /** MongoDB's startAfter: also behind an invalidate event. */
    static Start startAfter(BsonDocument token) {
        return new StartAfter(token);
    }

    /** The first event at or after a cluster time. */
    static Start atOperationTime(BsonTimestamp time) {
        return new AtOperationTime(time);
    }

    /** The first event at or after a wall-clock time, by the whole second. */
    static Start atTime(Instant time) {
        return new AtTime(time);
    }
}
