"""Inspect a server between two moments of a run: its components must agree about their shared state."""

from collections import Counter
from collections.abc import Iterator

from feedmux_server.core.delivery.ack_tracker import TRACKED_BYTES, AckTracker
from feedmux_server.core.delivery.claims import CLAIM_BYTES
from feedmux_server.core.delivery.feed_streams import FeedStreams
from feedmux_server.core.delivery.key_ledger import EVENT_BYTES, PIN_BYTES, KeyLedger
from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.wide.inbox import Inbox


def discrepancies(manager: StreamManager) -> Iterator[str]:
    """Describe each disagreement."""
    subscribers = [subscriber for each in manager.keyed() for subscriber in _subscribers(each.streams)]
    holders = _holders(subscribers)
    tracked = sum(len(each.acks._sent) for each in subscribers if isinstance(each.acks, AckTracker))
    of_groups = sum(_retained(each.acks) for each in subscribers if isinstance(each.acks, KeyLedger))
    held = sum(chunk.held_bytes for chunk in holders)
    if manager.accounts.backlog.bytes != held + TRACKED_BYTES * tracked + of_groups:
        yield "what is retained for acknowledgements is not what is paid for"
    for chunk, count in holders.items():
        if chunk.holders != count:
            yield f"a chunk has {chunk.holders} holders and should have {count}"
        if chunk.held_bytes != (chunk.size_bytes if chunk.evicted else 0):
            yield "an evicted chunk is counted wrongly"
    for each in manager.keyed():
        for stream in each.streams.open:
            yield from _of_ring(stream, holders)
        yield from _of_streams(each.streams)
    rings = sum(stream.ring.bytes for each in manager.keyed() for stream in each.streams.open)
    # A view that has left its wide stream still has what it was given.
    rings += sum(each.bytes for kind in manager.memory.rings._by_class for each in kind if isinstance(each, Inbox))
    if not any(manager.wide.streams()) and manager.memory.rings.bytes != rings:
        yield f"the rings hold {rings} bytes and the process counts {manager.memory.rings.bytes}"
    for subscriber in subscribers:
        yield from _of_subscriber(subscriber)


def _subscribers(streams: FeedStreams) -> Iterator[Subscriber]:
    for stream in streams.open:
        yield from stream.subscribers.values()
    yield from streams.detached.values()


def _retained(ledger: KeyLedger) -> int:
    """What the unsettled events of a group cost."""
    spans = {span for span, _, _ in ledger.events.values()}
    failed = sum(tries.size for tries in ledger.retries._tries.values())
    other = PIN_BYTES * len(ledger.pinned) + ledger.loading_bytes
    claims = 0 if ledger._claims is None else CLAIM_BYTES * len(ledger._claims)
    held = sum(span._held_bytes for span in spans)
    return other + claims + EVENT_BYTES * len(ledger.events) + held + failed


def _holders(subscribers: list[Subscriber]) -> Counter[Chunk]:
    """How many trackers hold each chunk."""
    holders: Counter[Chunk] = Counter()
    for subscriber in subscribers:
        if isinstance(subscriber.acks, AckTracker):
            holders.update({chunk: 1 for _, chunk, _, _ in subscriber.acks._sent})
    return holders


def _of_ring(stream: SharedStream, holders: Counter[Chunk]) -> Iterator[str]:
    ring = stream.ring
    chunks = [ring[seq] for seq in range(ring.first_seq, ring.next_seq)]
    if ring.events != sum(chunk.count for chunk in chunks):
        yield "a ring's events are counted wrongly"
    if ring.bytes < sum(chunk.size_bytes for chunk in chunks if not chunk.rendered):
        yield "a ring's bytes are counted wrongly"
    place = ring.oldest
    for chunk in chunks:
        if chunk.holders != holders[chunk]:
            yield "a chunk in a ring has a holder that does not exist any more"
        if chunk.evicted or chunk.bson is None:
            yield "a chunk in a ring has lost its bytes"
            continue
        if not chunk.token(0).is_after(place):
            yield "chunks overlap"
        place = chunk.end
    if place.is_after(ring.newest):
        yield "a ring has events after its newest position"


def _of_streams(streams: FeedStreams) -> Iterator[str]:
    waiting = {number for each in streams._waiting.values() for number in each}
    for stream in streams.open:
        for number, subscriber in stream.subscribers.items():
            if subscriber.ring is not stream.ring or number in streams.detached or number in waiting:
                yield "a subscriber is attached twice"
            ring = stream.ring
            if ring.first_seq <= subscriber.seq < ring.next_seq:
                chunk = ring[subscriber.seq]
                if subscriber.index > chunk.count:
                    yield "a subscriber's index is outside of its chunk"
    for subscriber in streams.detached.values():
        if subscriber.ring is not None:
            yield "a detached subscriber has a stream"
    if not waiting <= streams.detached.keys():
        yield "a subscriber that waits for a slot is attached"


def _of_subscriber(subscriber: Subscriber) -> Iterator[str]:
    """Check that the acked position is after the last acked event, and before the next event."""
    acks = subscriber.acks
    if not isinstance(acks, AckTracker) or not acks._sent:
        return
    if acks.sent != subscriber.events_sent:
        yield "a tracker does not have the events that were sent"
    first_sequence, chunk, first, stop = acks._sent[0]
    done = max(0, acks.acked + 1 - first_sequence)
    if chunk.bson is not None and first + done < stop and not chunk.token(first + done).is_after(acks.place):
        yield "an acked position is not before the next unacked event"
