package dev.feedmux;

import java.time.Instant;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/**
 * A durable subscription as the server has it.
 *
 * @param name unique in the tenant
 * @param feed what it reads
 * @param onInvalidate a policy that this client does not know reads as {@link OnInvalidate#STOP}
 * @param onHistoryLost a policy that this client does not know reads as {@link OnHistoryLost#FAIL}
 * @param position stored: everything at or before it is processed
 * @param clusterTime of the position
 * @param createTime when it was created
 * @param updateTime when the definition or, by a seek, the position was last changed
 * @param etag changes with the definition
 * @param active whether a session is open
 * @param owner the instance id of the open session
 * @param epoch of the newest session
 * @param expireTime when the server deletes it unless it is used before; null: never, or not while it is open
 * @param routingKey by which a proxy finds the replica that reads this feed
 */
public record SubscriptionInfo(
        String name,
        Feed feed,
        OnInvalidate onInvalidate,
        OnHistoryLost onHistoryLost,
        Position position,
        @Nullable BsonTimestamp clusterTime,
        @Nullable Instant createTime,
        @Nullable Instant updateTime,
        String etag,
        boolean active,
        String owner,
        long epoch,
        @Nullable Instant expireTime,
        String routingKey) {}
