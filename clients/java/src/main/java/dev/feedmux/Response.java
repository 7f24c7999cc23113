package dev.feedmux;

import java.time.Duration;
import org.jspecify.annotations.Nullable;

/** A message of the server, as the client's own value. */
sealed interface Response {
    /** The stream is open. A limit of 0 means no limit. */
    record Opened(
            long epoch,
            FeedPosition feedPosition,
            boolean atLastAcked,
            Duration heartbeat,
            long creditEventsMax,
            long creditBytesMax,
            long unackedEventsMax,
            int messageBytesMax,
            String routingKey,
            @Nullable SnapshotStatus copying)
            implements Response {}

    /** Events, and the sequence of the first event. */
    record Delivery(long firstSequence, Batch batch) implements Response {}

    /** Everything at or before {@code feedPosition} has been delivered. */
    record Progress(FeedPosition feedPosition) implements Response {}

    /** Acks are durable; {@code position} is stored. */
    record Committed(long sequence, Position position) implements Response {}

    /** A notice of the server. */
    record Told(Notice notice) implements Response {}
}
