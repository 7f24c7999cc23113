package dev.feedmux;

import org.bson.BsonDocument;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/**
 * A position in a feed, with its resume token and cluster time. Everything at or before it has been delivered.
 *
 * @param position the position; {@link Position#NONE} if only a resume token is known
 * @param resumeToken MongoDB's resume token; null if there is none
 * @param clusterTime the cluster time; null if it is unknown
 */
public record FeedPosition(
        Position position,
        @Nullable BsonDocument resumeToken,
        @Nullable BsonTimestamp clusterTime) {
    static final FeedPosition NONE = new FeedPosition(Position.NONE, null, null);

    /** Returns the position of an event of which only the resume token is known. */
    static FeedPosition of(BsonDocument token) {
        return new FeedPosition(Position.NONE, token, Tokens.timeOf(token));
    }

    boolean isEmpty() {
        return position.isEmpty() && resumeToken == null;
    }

    /** Whether both cluster times are known and this position has the earlier one. */
    boolean isBefore(FeedPosition other) {
        return clusterTime != null && other.clusterTime != null && clusterTime.compareTo(other.clusterTime) < 0;
    }
}
