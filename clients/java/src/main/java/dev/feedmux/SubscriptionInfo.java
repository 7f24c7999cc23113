package dev.feedmux;

import java.time.Instant;
import org.bson.BsonTimestamp;
import org.jspecify.annotations.Nullable;

/**
 * A durable subscription as stored on the server.
 *
 * @param name the name, unique within the tenant
 * @param feed the feed that it reads
 * @param onInvalidate the policy for invalidate events; {@link OnInvalidate#STOP} if this client does not know the
 *     policy
 * @param onHistoryLost the policy for lost history; {@link OnHistoryLost#FAIL} if this client does not know the policy
 * @param position the stored position: everything at or before it has been processed
 * @param clusterTime the cluster time of the position
 * @param createTime when the subscription was created
 * @param updateTime when the definition or, by a seek, the position was last changed
 * @param etag the etag, which changes with the definition
 * @param active whether a session on the subscription is open
 * @param owner the instance id of the open session
 * @param epoch the epoch of the newest session
 * @param expireTime when the server deletes the subscription if it is not used before then; null if it never does, or
 *     not while a session is open
 * @param routingKey the key by which a proxy finds the replica that reads this feed
 * @param snapshot how far the copy of existing documents is that the stored position is within; null outside of a copy
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
        String routingKey,
        @Nullable SnapshotStatus snapshot) {}
