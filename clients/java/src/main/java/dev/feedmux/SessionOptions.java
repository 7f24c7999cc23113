package dev.feedmux;

import java.time.Duration;
import java.util.Objects;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * How a session behaves. The window limits the events and bytes that wait in the client: a larger window smooths
 * delivery, a smaller one saves memory. The client refills the window when the reader has taken a quarter of it, so a
 * slow reader slows down the server.
 *
 * @param windowEvents how many events may wait in the client: 1 to 2^31-1; by default 16,384
 * @param windowBytes how many bytes may wait in the client: 1 to 2^40; by default 8 MiB. It also limits the bytes of
 *     unacked events that are retained in full; of older unacked events, only the resume tokens are retained
 * @param messageBytesMax the maximum message size in bytes: 64 KiB to 64 MiB, by default 1 MiB. The server sends larger
 *     events in fragments, which the client joins
 * @param heartbeat how often an idle server sends a message: 1 s to 60 s, by default 10 s. After three intervals
 *     without a message, the client reconnects
 * @param ackInterval the maximum delay before acks are sent, by default 100 ms; a longer interval means fewer messages
 *     and more repeated events after a crash
 * @param openTimeout the maximum time for {@code open()}, by default 30 s. It also ends an attempt in progress. Then
 *     {@code open()} throws the error of the last attempt that failed
 * @param reconnectTimeout how long a session keeps trying to reconnect after the loss of its stream; then it ends with
 *     the error of the last attempt that failed. Null, the default, means forever
 * @param closeTimeout how long {@code close()} waits for the server to confirm the acks; by default 5 s
 * @param backoffFirst the first upper bound of the random delay between attempts, by default 0.2 s. The bound doubles
 *     with each attempt, up to {@code backoffMost}
 * @param backoffMost the largest upper bound of the delay between attempts, by default 10 s
 * @param format the format of events on the wire; by default BSON
 * @param takeover whether to end another client's session on the subscription; by default false. It cannot be a
 *     client's default
 * @param onNotice the listener for notices, called in the thread that takes the events around them; by default, notices
 *     are logged. {@link Session#items} returns them instead
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
            SessionOptions::log);

    private static void log(Notice notice) {
        boolean isProgress = notice instanceof Notice.SnapshotProgress || notice instanceof Notice.SnapshotComplete;
        LOG.log(isProgress ? System.Logger.Level.INFO : System.Logger.Level.WARNING, "{0}", notice);
    }

    /** Checks that the values are in range. */
    public SessionOptions {
        Objects.requireNonNull(format, "a format is required");
        Objects.requireNonNull(onNotice, "a listener for notices is required");
        require(windowEvents >= 1, "windowEvents must be 1 to 2^31-1");
        require(windowBytes >= 1 && windowBytes <= 1L << 40, "windowBytes must be 1 to 2^40");
        require(
                messageBytesMax >= 64 * 1024 && messageBytesMax <= 64 * 1024 * 1024,
                "messageBytesMax must be 64 KiB to 64 MiB");
        require(isWithin(heartbeat, Duration.ofSeconds(1), Duration.ofSeconds(60)), "heartbeat must be 1 s to 60 s");
        for (Duration each : new Duration[] {ackInterval, openTimeout, closeTimeout, backoffFirst, backoffMost}) {
            require(!each.isNegative(), "a duration must not be negative");
        }
        require(reconnectTimeout == null || !reconnectTimeout.isNegative(), "reconnectTimeout must not be negative");
        ackInterval = Durations.capped(ackInterval);
        openTimeout = Durations.capped(openTimeout);
        reconnectTimeout = reconnectTimeout == null ? null : Durations.capped(reconnectTimeout);
        closeTimeout = Durations.capped(closeTimeout);
        backoffFirst = Durations.capped(backoffFirst);
        backoffMost = Durations.capped(backoffMost);
    }

    /** Returns the default options. */
    public static SessionOptions defaults() {
        return DEFAULTS;
    }

    /** Returns a builder that starts with these options. */
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

        /** Sets how many events may wait in the client. */
        public Builder windowEvents(int events) {
            windowEvents = events;
            return this;
        }

        /** Sets how many bytes may wait in the client. */
        public Builder windowBytes(long bytes) {
            windowBytes = bytes;
            return this;
        }

        /** Sets the maximum message size in bytes. */
        public Builder messageBytesMax(int bytes) {
            messageBytesMax = bytes;
            return this;
        }

        /** Sets how often an idle server sends a message. */
        public Builder heartbeat(Duration interval) {
            heartbeat = interval;
            return this;
        }

        /** Sets the maximum delay before acks are sent. */
        public Builder ackInterval(Duration interval) {
            ackInterval = interval;
            return this;
        }

        /** Sets the maximum time for opening a session. */
        public Builder openTimeout(Duration timeout) {
            openTimeout = timeout;
            return this;
        }

        /** Sets how long an open session keeps trying to reconnect; null means forever. */
        public Builder reconnectTimeout(@Nullable Duration timeout) {
            reconnectTimeout = timeout;
            return this;
        }

        /** Sets how long closing waits for the server to confirm the acks. */
        public Builder closeTimeout(Duration timeout) {
            closeTimeout = timeout;
            return this;
        }

        /** Sets the first and the largest upper bound of the random delay between attempts. */
        public Builder backoff(Duration first, Duration most) {
            backoffFirst = first;
            backoffMost = most;
            return this;
        }

        /** Sets the format of events on the wire. */
        public Builder format(Format chosen) {
            format = chosen;
            return this;
        }

        /** Sets whether to end another client's session on the subscription. */
        public Builder takeover(boolean replace) {
            takeover = replace;
            return this;
        }

        /** Sets the listener for notices between the events. */
        public Builder onNotice(Consumer<Notice> listener) {
            onNotice = listener;
            return this;
        }

        /** Builds the options. */
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
