package dev.feedmux;

import java.time.Duration;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * How a session behaves. The window bounds what waits in the client, in events and bytes: larger smooths, smaller saves
 * memory. It is refilled when a quarter of it has been taken, so a slow reader slows the server.
 *
 * @param windowEvents 1 to 2^31-1; by default 16,384
 * @param windowBytes 1 to 2^40; by default 8 MiB. It also bounds the bytes of events that are kept until they are acked;
 *     of older ones only the resume tokens are kept
 * @param messageBytesMax bytes of the largest message: 64 KiB to 64 MiB, by default 1 MiB. Larger events come as
 *     fragments and are joined here
 * @param heartbeat how often an idle server says something: 1 s to 60 s, by default 10 s. After three silent intervals
 *     the client reconnects
 * @param ackInterval acks are sent at most this late, by default 100 ms; longer means fewer messages and more repeats
 *     after a crash
 * @param openTimeout how long {@code open()} takes at most, also while an attempt is in progress; by default 30 s. Then it
 *     throws the error of the last attempt that had one
 * @param reconnectTimeout how long a session that was open keeps trying to reconnect, from the loss of its stream; then it
 *     ends with the error of the last attempt that had one. Null, the default: as long as it takes
 * @param closeTimeout how long {@code close()} waits until the acks are confirmed; by default 5 s
 * @param backoffFirst with {@code backoffMost}: delays between attempts are random between 0 and a bound that doubles
 *     from the first (0.2 s) to the second (10 s)
 * @param backoffMost see {@code backoffFirst}
 * @param format on the wire; by default BSON
 * @param takeover whether to end another client's session of the subscription; by default not
 * @param onNotice told notices, in the thread that takes the events around them; by default they are logged.
 *     {@link Session#items} hands them out instead
 */
public record SessionOptions(
        int windowEvents,
        long windowBytes,
        int messageBytesMax,
        Duration heartbeat,
        Duration ackInterval,
        Duration openTimeout,
        @Nullable Duration reconnectTimeout,
        Duration closeTimeout,
        Duration backoffFirst,
        Duration backoffMost,
        Format format,
        boolean takeover,
        Consumer<Notice> onNotice) {

    private static final System.Logger LOG = System.getLogger("dev.feedmux");
    private static final SessionOptions DEFAULTS = new SessionOptions(
            16_384,
            8 * 1024 * 1024,
            1024 * 1024,
            Duration.ofSeconds(10),
            Duration.ofMillis(100),
            Duration.ofSeconds(30),
            null,
            Duration.ofSeconds(5),
            Duration.ofMillis(200),
            Duration.ofSeconds(10),
            Format.BSON,
            false,
            notice -> LOG.log(System.Logger.Level.WARNING, "{0}", notice));

    /** Checks the ranges. */
    public SessionOptions {
        require(windowEvents >= 1, "windowEvents is 1 to 2^31-1");
        require(windowBytes >= 1 && windowBytes <= 1L << 40, "windowBytes is 1 to 2^40");
        require(
                messageBytesMax >= 64 * 1024 && messageBytesMax <= 64 * 1024 * 1024,
                "messageBytesMax is 64 KiB to 64 MiB");
        require(isWithin(heartbeat, Duration.ofSeconds(1), Duration.ofSeconds(60)), "heartbeat is 1 s to 60 s");
        for (Duration each : new Duration[] {ackInterval, openTimeout, closeTimeout, backoffFirst, backoffMost}) {
            require(!each.isNegative(), "a duration is negative");
        }
        require(reconnectTimeout == null || !reconnectTimeout.isNegative(), "reconnectTimeout is negative");
    }

    /** What applies where nothing is said. */
    public static SessionOptions defaults() {
        return DEFAULTS;
    }

    /** These options, to be changed. */
    public Builder toBuilder() {
        return new Builder(this);
    }

    private static boolean isWithin(Duration value, Duration least, Duration most) {
        return value.compareTo(least) >= 0 && value.compareTo(most) <= 0;
    }

    private static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalArgumentException(otherwise);
        }
    }

    /** Changes {@link SessionOptions} one by one. */
    public static final class Builder {
        private int windowEvents;
        private long windowBytes;
        private int messageBytesMax;
        private Duration heartbeat;
        private Duration ackInterval;
        private Duration openTimeout;
        private @Nullable Duration reconnectTimeout;
        private Duration closeTimeout;
        private Duration backoffFirst;
        private Duration backoffMost;
        private Format format;
        private boolean takeover;
        private Consumer<Notice> onNotice;

        private Builder(SessionOptions from) {
            windowEvents = from.windowEvents;
            windowBytes = from.windowBytes;
            messageBytesMax = from.messageBytesMax;
            heartbeat = from.heartbeat;
            ackInterval = from.ackInterval;
            openTimeout = from.openTimeout;
            reconnectTimeout = from.reconnectTimeout;
            closeTimeout = from.closeTimeout;
            backoffFirst = from.backoffFirst;
            backoffMost = from.backoffMost;
            format = from.format;
            takeover = from.takeover;
            onNotice = from.onNotice;
        }

        /** Events that may wait in the client. */
        public Builder windowEvents(int events) {
            windowEvents = events;
            return this;
        }

        /** Bytes that may wait in the client. */
        public Builder windowBytes(long bytes) {
            windowBytes = bytes;
            return this;
        }

        /** Bytes of the largest message. */
        public Builder messageBytesMax(int bytes) {
            messageBytesMax = bytes;
            return this;
        }

        /** How often an idle server says something. */
        public Builder heartbeat(Duration interval) {
            heartbeat = interval;
            return this;
        }

        /** Acks are sent at most this late. */
        public Builder ackInterval(Duration interval) {
            ackInterval = interval;
            return this;
        }

        /** How long opening takes at most. */
        public Builder openTimeout(Duration timeout) {
            openTimeout = timeout;
            return this;
        }

        /** How long an open session keeps trying to reconnect; null: as long as it takes. */
        public Builder reconnectTimeout(@Nullable Duration timeout) {
            reconnectTimeout = timeout;
            return this;
        }

        /** How long closing waits until the acks are confirmed. */
        public Builder closeTimeout(Duration timeout) {
            closeTimeout = timeout;
            return this;
        }

        /** The bounds of the random delay between attempts. */
        public Builder backoff(Duration first, Duration most) {
            backoffFirst = first;
            backoffMost = most;
            return this;
        }

        /** How events are written on the wire. */
        public Builder format(Format chosen) {
            format = chosen;
            return this;
        }

        /** Whether to end another client's session of the subscription. */
        public Builder takeover(boolean replace) {
            takeover = replace;
            return this;
        }

        /** Told notices between the events. */
        public Builder onNotice(Consumer<Notice> listener) {
            onNotice = listener;
            return this;
        }

        /** The options. */
        public SessionOptions build() {
            return new SessionOptions(
                    windowEvents,
                    windowBytes,
                    messageBytesMax,
                    heartbeat,
                    ackInterval,
                    openTimeout,
                    reconnectTimeout,
                    closeTimeout,
                    backoffFirst,
                    backoffMost,
                    format,
                    takeover,
                    onNotice);
        }
    }
}
