package dev.feedmux;

import java.time.Duration;

/** What comes down, as the client's own values. */
sealed interface Response {
    /** The stream is open. A limit of 0 says nothing. */
    record Opened(
            long epoch,
            Place place,
            boolean atLastAcked,
            Duration heartbeat,
            long creditEventsMax,
            long creditBytesMax,
            long unackedEventsMax,
            int messageBytesMax,
            String routingKey)
            implements Response {}

    /** Events, and the sequence of the first of them. */
    record Delivery(long firstSequence, Batch batch) implements Response {}

    /** Everything at or before {@code place} has been delivered. */
    record Progress(Place place) implements Response {}

    /** Acks are durable; {@code position} is stored. */
    record Committed(Position position) implements Response {}

    /** Something to know. */
    record Told(Notice notice) implements Response {}
}
