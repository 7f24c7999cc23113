package dev.feedmux;

import org.bson.BsonDocument;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/**
 * A place in a feed: everything at or before it has been delivered.
 *
 * @param position {@link Position#NONE} where only a resume token is known
 * @param resumeToken MongoDB's resume token; null where there is none
 * @param clusterTime null where it is unknown
 */
public record Place(
        Position position,
        @Nullable BsonDocument resumeToken,
        @Nullable BsonTimestamp clusterTime) {
    static final Place NOWHERE = new Place(Position.NONE, null, null);

    /** The place of an event whose resume token is all that is known. */
    static Place of(BsonDocument token) {
        return new Place(Position.NONE, token, Tokens.timeOf(token));
    }

    boolean isNowhere() {
        return position.isEmpty() && resumeToken == null;
    }

    /** Whether both times are known and this one is the earlier. */
    boolean isBefore(Place other) {
        return clusterTime != null && other.clusterTime != null && clusterTime.compareTo(other.clusterTime) < 0;
    }
}
