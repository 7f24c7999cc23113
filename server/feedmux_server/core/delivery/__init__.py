"""From a stream to a subscriber: rings, streams, subscribers, acks and credit."""
