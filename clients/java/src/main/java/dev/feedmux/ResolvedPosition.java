package dev.feedmux;

import java.time.Instant;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/**
 * The position that a start stands for.
 *
 * @param position to be stored, and given to {@link Start#after}
 * @param clusterTime of the position
 * @param time the same as wall-clock time, by the second
 */
public record ResolvedPosition(
        Position position,
        @Nullable BsonTimestamp clusterTime,
        @Nullable Instant time) {}
