"""The size that is counted for a retained object is the memory that it takes, measured with tracemalloc."""

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import bson

from feedmux_server.core.delivery.ack_tracker import AckTracker
from feedmux_server.core.delivery.cached_range import held_bytes
from feedmux_server.core.delivery.key_runs import Hand
from feedmux_server.core.delivery.namespaces import NamespaceIndex
from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.events.chunk import Chunk, cut_batch
from feedmux_server.core.limits.account import Account
from feedmux_server.core.limits.quota import UNLIMITED_QUOTAS
from feedmux_server.sessions.quota_gate import QuotaGate
from feedmux_server.streams.wakeup import Wakeup
from tests.sim.events import event
from tests.tables import over
from tests.unit.core.delivery.ledger_support import Group
from tests.unit.core.delivery.streams_support import mark, token

COUNT = 500


def small_chunks(count: int) -> list[Chunk]:
    """Chunks of one event each."""
    chunks = []
    for number in range(1, count + 1):
        data = event(number, token(number), 50).data
        chunks += cut_batch(data, mark(number - 1), mark(number), 0.0, bytes_max=len(data))
    return chunks


def indexes() -> tuple[Callable[[], Any], Callable[[Any], int]]:
    """Indexes of changes in ten collections."""
    chunks = []
    for _ in range(4):
        events = [
            bson.encode(
                {
                    "_id": bson.decode(token(number).raw),
                    "operationType": "insert",
                    "ns": {"db": "shop", "coll": f"orders-{number % 10}"},
                }
            )
            for number in range(1, 1001)
        ]
        data = b"".join(events)
        chunks += cut_batch(data, mark(0), mark(1000), 0.0, bytes_max=len(data))
    return lambda: [NamespaceIndex(each) for each in chunks], lambda made: sum(each.size_bytes for each in made)


def trackers() -> tuple[Callable[[], Any], Callable[[Any], int]]:
    """Trackers in which each event has its own chunk and its own delivery."""
    chunks, paid = small_chunks(COUNT), list[int]()

    def track() -> Any:
        acks = AckTracker(mark(0), COUNT, paid.append)
        allowance = QuotaGate(Account("t", UNLIMITED_QUOTAS, 0.0), Wakeup(), holds=True)
        for number, chunk in enumerate(chunks, 1):
            acks.record(chunk, 0, 1)
            allowance.sent(Delivery(number, 1, (), 1, 1, mark(0), 0.0), 0.0)
        return acks, allowance

    return track, lambda _: sum(paid)


def deliveries() -> tuple[Callable[[], Any], Callable[[Any], int]]:
    chunks = small_chunks(COUNT)

    def keep() -> Any:
        kept = []
        for number, chunk in enumerate(chunks, 1):
            assert chunk.bson is not None
            data = bytes(bytearray(chunk.bson.data))
            kept.append(Delivery(number, 1, (data,), len(data), len(data), token(number), float(number)))
        return kept

    return keep, lambda kept: sum(map(held_bytes, kept))


def ledgers(per_chunk: int, *, fails: bool) -> tuple[Callable[[], Any], Callable[[Any], int]]:
    """Events of a group, each with a key of its own, in the hand of a member or failed."""
    group, hand = Group(*range(COUNT), outstanding_max=COUNT, reads=0, per_chunk=per_chunk), Hand()

    def keep() -> Any:
        group.read(*group.chunks)
        parts = group.take(hand, events_max=COUNT, runs_max=COUNT).count
        for sequence in range(1, parts + 1 if fails else 1):
            group.fail(hand, sequence, reason=f"the reason of {sequence}", retry_after_s=1.0)
        return hand

    return keep, lambda _: group.paid


LEDGERS = [
    partial(ledgers, per_chunk, fails=fails)
    for per_chunk, fails in ((1000, False), (2, False), (1, False), (1000, True))
]


@over("made", [indexes, trackers, deliveries, *LEDGERS])
def test_what_is_counted_is_what_it_takes(made: Callable[[], tuple[Callable[[], Any], Callable[[Any], int]]]) -> None:
    make, counted_of = made()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = make()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counted = counted_of(kept)
    assert 0.8 * taken < counted < 1.5 * taken, (taken, counted)
