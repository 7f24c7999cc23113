package dev.feedmux;

import java.time.Instant;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/**
 * The position to which a {@link Start} resolves.
 *
 * @param position the position, which you can store and pass to {@link Start#after}
 * @param clusterTime the cluster time of the position
 * @param time the cluster time as wall-clock time, with a resolution of one second
 */
public record ResolvedPosition(
        Position position,
        @Nullable BsonTimestamp clusterTime,
        @Nullable Instant time) {}
