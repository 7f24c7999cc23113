package dev.feedmux;

import org.jspecify.annotations.Nullable;

/**
 * What to open: a durable subscription by name, or a feed with a start.
 *
 * @param subscription the name of the subscription; empty for a feed
 * @param feed the feed; null for a subscription
 * @param start where to begin; null means now, or the subscription's stored position
 * @param instanceId the identifier of the session object, which is the same across reconnects
 */
record Opening(
        String subscription,
        dev.feedmux.v1.@Nullable Feed feed,
        @Nullable Start start,
        String instanceId) {
    boolean durable() {
        return feed == null;
    }
}
