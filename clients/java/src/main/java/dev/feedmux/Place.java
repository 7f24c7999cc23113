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
public record Place(
        Position position,
        @Nullable BsonDocument resumeToken,
        @Nullable BsonTimestamp clusterTime) {
    static final Place NOWHERE = new Place(Position.NONE, null, null);

    /** Returns the place of an event of which only the resume token is known. */
    static Place of(BsonDocument token) {
        return new Place(Position.NONE, token, Tokens.timeOf(token));
    }

    boolean isNowhere() {
        return position.isEmpty() && resumeToken == null;
    }

    /** Whether both cluster times are known and this place has the earlier one. */
    boolean isBefore(Place other) {
        return clusterTime != null && other.clusterTime != null && clusterTime.compareTo(other.clusterTime) < 0;
    }
}
