package dev.feedmux;

import org.jspecify.annotations.Nullable;

/**
 * What to open: a durable subscription by name, or a feed with a start.
 *
 * @param subscription empty for a feed
 * @param feed null for a subscription
 * @param start null is from now, or where the subscription stands
 * @param instanceId the name of the session object, stable over its reconnects
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
