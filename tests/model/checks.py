"""What must hold inside the parts after every action: attachments, memory counted, holders, acked places."""

from collections import Counter
from typing import Protocol

from feedmux_server.core.ack_tracker import TRACKED_BYTES
from feedmux_server.core.chunk import CHUNK_OVERHEAD_BYTES, Chunk
from feedmux_server.core.feed_streams import FeedStreams
from feedmux_server.core.shared_stream import SharedStream
from tests.model.clients import FakeClient
from tests.model.source import FakeSource


class Inspected(Protocol):
    streams: FeedStreams
    source: FakeSource
    clients: list[FakeClient]
    backlog_bytes: int

    def open_clients(self) -> list[FakeClient]: ...


def raw_bytes(stream: SharedStream) -> int:
    """What the ring holds without renderings, which count only when the next chunk is appended."""
    ring = stream.ring
    size = 0
    for seq in range(ring.first_seq, ring.next_seq):
        view = ring[seq].bson
        assert view is not None, "a chunk in the ring has lost its bytes"
        size += CHUNK_OVERHEAD_BYTES + len(view.data) + 8 * len(view.offsets)
    return size


def check_world(world: Inspected) -> None:
    holders = _count_holders(world)
    for stream in world.streams.streams:
        _check_ring(world, stream, holders)
    assert world.streams.subscriber_count == len(world.open_clients()), "a subscriber is counted twice or not at all"
    for client in world.open_clients():
        _check_attached(world, client)
        _check_acked(world, client)


def _count_holders(world: Inspected) -> Counter[Chunk]:
    holders: Counter[Chunk] = Counter()
    chunks: dict[Chunk, None] = {}
    tracked = 0
    for client in world.clients:
        acks = client.subscriber.acks
        if acks is None:
            continue
        assert not client.ended or not acks._sent, "a session that is over still holds chunks"
        tracked += TRACKED_BYTES * len(acks._sent)
        for _, chunk, first, stop in acks._sent:
            assert first < stop
            chunks[chunk] = None
        holders.update({chunk for _, chunk, _, _ in acks._sent})
    for chunk in chunks:
        assert chunk.holders == holders[chunk], "a chunk does not know its holders"
        assert chunk.held_bytes == (chunk.size_bytes if chunk.evicted else 0), "an evicted chunk is counted wrongly"
        assert not chunk.rendered or not chunk.evicted, "an evicted chunk has a rendering"
    held = sum(chunk.held_bytes for chunk in chunks)
    assert world.backlog_bytes == held + tracked, "what is retained for acknowledgements is not what is paid for"
    return holders


def _check_ring(world: Inspected, stream: SharedStream, holders: Counter[Chunk]) -> None:
    ring = stream.ring
    chunks = [ring[seq] for seq in range(ring.first_seq, ring.next_seq)]
    assert ring.bytes == sum(chunk.size_bytes for chunk in chunks), "the ring's bytes are counted wrongly"
    assert ring.events == sum(chunk.count for chunk in chunks), "the ring's events are counted wrongly"
    assert not ring.oldest.is_after(ring.newest)
    place = ring.oldest
    for chunk in chunks:
        assert chunk.holders == holders[chunk], "a chunk has a holder that is gone"
        assert not chunk.evicted
        assert chunk.bson is not None
        first, last = chunk.token(0), chunk.token(chunk.count - 1)
        assert first.is_after(place), "chunks overlap"
        assert not last.is_after(chunk.end)
        place = chunk.end
    assert not place.is_after(ring.newest)
    held = sum(chunk.count for chunk in chunks)
    between = world.source.rank_behind(ring.newest) - world.source.rank_behind(ring.oldest)
    assert held == between, f"the ring covers {between} events and holds {held}"


def _check_attached(world: Inspected, client: FakeClient) -> None:
    subscriber, streams = client.subscriber, world.streams
    stream = subscriber.stream
    waiting = subscriber.id in streams._waiting
    if stream is None:
        assert subscriber.id in streams.detached, "a subscriber is nowhere"
        assert waiting or client.woken or not subscriber.can_receive, "a subscriber is detached, and nobody wakes it"
        return
    assert isinstance(stream, SharedStream)
    assert stream in streams.streams, "a subscriber is attached to a closed stream"
    assert stream.subscribers.get(subscriber.id) is subscriber
    assert not waiting
    assert subscriber.id not in streams.detached
    ring = stream.ring
    if ring.first_seq <= subscriber.seq < ring.next_seq and not subscriber.at.place.is_after(ring[subscriber.seq].end):
        chunk = ring[subscriber.seq]
        if subscriber.at.place.is_after(chunk.start):
            assert subscriber.index in (0, chunk.first_after(subscriber.at.place)), "index and place differ"


def _check_acked(world: Inspected, client: FakeClient) -> None:
    """The acked place is behind the last acked event and before the next one, and never inside a split event."""
    acks, events = client.subscriber.acks, world.source.events
    if acks is None:
        return
    assert acks.sent == len(client.sent)
    rank = world.source.rank_behind(acks.place)
    if rank:
        assert not events[rank - 1].fragment_open, "an acked place lies inside a split event"
    acked, left = client.sent[: acks.acked], client.sent[acks.acked :]
    if left:
        assert rank <= left[0], "an acked place is behind an event that is not acked"
    whole = [number for number in acked if not events[number].fragment_open]
    if whole:
        assert rank > whole[-1], "an acked place is before an event that is acked"
