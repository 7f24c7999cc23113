"""A position of one token version in a stream of the other: nothing after it is lost, and little is repeated.

A sharded cluster has several events at one cluster time, and the two versions sort them differently.
"""

from dataclasses import dataclass
from itertools import pairwise

import bson
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmux_server.core.delivery.cached_range import CachedRange, trimmed
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.events.chunk import Chunk, cut_batch
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import Given, ResumeToken
from feedmux_server.core.positions.stored_order import order_bytes
from tests.sim.events import BEGIN, number
from tests.unit.core.delivery.streams_support import Feed, opened

OPERATIONS = ("delete", "insert", "update")


@dataclass(frozen=True, order=True)
class Change:
    """An event of one shard, whatever the version of its token."""

    time: int
    txn: int
    collection: int
    key: int
    operation: str

    def token(self, version: int) -> ResumeToken:
        document_key = f"461E5F696400{number(self.key)}00"
        if version == 2:
            operation = self.operation.encode().hex().upper()
            identifier = f"463C6F7065726174696F6E54797065003C{operation}0046646F63756D656E744B657900{document_key}00"
        else:
            identifier = document_key
        collection = f"5A1004{self.collection:032X}"
        data = f"82{BEGIN + self.time:016X}{number(version)}{number(128)}{number(self.txn)}6E{collection}{identifier}04"
        return ResumeToken.from_key_string(bytes.fromhex(data))

    def data(self, version: int) -> bytes:
        fields = [self.time, self.txn, self.collection, self.key, self.operation]
        return bson.encode({"_id": bson.decode(self.token(version).raw), "n": fields})


def changes_of(parts: tuple[bytes, ...]) -> list[Change]:
    return [Change(*each["n"]) for each in bson.decode_all(b"".join(parts))]


def in_order(changes: set[Change], version: int) -> list[Change]:
    """The changes in the order of a stream of that version."""
    return sorted(changes, key=lambda each: each.token(version).key)


def unique(found: list[tuple[int, int, int, int, str]]) -> set[Change]:
    """Keep at most one event of each document at one cluster time."""
    return set({each[:4]: Change(*each) for each in found}.values())


CHANGES = st.tuples(
    st.integers(1, 3),
    st.sampled_from([0, 0, 0, 1]),
    st.integers(1, 2),
    st.integers(1, 4),
    st.sampled_from(OPERATIONS),
)
HISTORIES = st.lists(CHANGES, min_size=2, max_size=14).map(unique)
VERSIONS = st.sampled_from([(1, 2), (2, 1)])


def chunks_of(changes: list[Change], version: int, start: ResumeToken, cuts: list[int]) -> list[Chunk]:
    """The changes in batches of those lengths, the last with a high-water mark."""
    found: list[Chunk] = []
    rest = list(changes)
    lengths = iter(cuts)
    while rest:
        length = next(lengths, len(rest))
        batch, rest = rest[:length], rest[length:]
        mark = None if rest else ResumeToken.high_water_mark(BEGIN + 100, version)
        data = b"".join(each.data(version) for each in batch)
        found += cut_batch(data, start, mark, 0.0, bytes_max=10**6)
        start = found[-1].end
    return found


CUTS = st.lists(st.integers(1, 5), max_size=8)


def check(delivered: list[Change], wanted: list[Change], place: Change) -> None:
    """Check that all wanted changes came, in the stream's order, and that every other one has the position's cluster
    time."""
    assert not set(wanted) - set(delivered), "lost"
    assert len(delivered) == len(set(delivered))
    assert all(each.time == place.time for each in set(delivered) - set(wanted))


@given(HISTORIES, VERSIONS, CUTS, st.data())
@settings(max_examples=100)
def test_a_subscriber_that_goes_on_in_a_ring_of_another_version(
    history: set[Change], versions: tuple[int, int], cuts: list[int], data: st.DataObject
) -> None:
    before, now = versions
    old = in_order(history, before)
    index = data.draw(st.integers(0, len(old) - 1))
    place = old[index].token(before)
    start = ResumeToken.high_water_mark(BEGIN, now)
    feed = Feed()
    stream = feed.stream_of(feed.subscriber(JoinPoint(start)))
    opened(stream)
    chunks = chunks_of(in_order(history, now), now, start, cuts)
    dropped = data.draw(st.integers(0, len(chunks) - 1))
    stream.append(chunks, chunks[-1].end)
    for _ in range(dropped):
        stream.ring.drop_oldest()
    subscriber = feed.subscriber(
        JoinPoint(place), payload_max=data.draw(st.sampled_from([200, 700, 10**6])), acks_max=100
    )
    if subscriber.ring is not stream.ring:
        return  # evicted: the server asks MongoDB, see below
    delivered = drain(feed, subscriber)
    check(delivered, old[index + 1 :], old[index])
    orders = [order_bytes(place)]
    assert subscriber.acks is not None
    for sequence in range(1, len(delivered) + 1):
        subscriber.acks.ack(sequence)
        at = subscriber.acks.place
        orders.append(at.cluster_time.to_bytes(8) + order_bytes(at))
    if now > before:
        orders[0] = place.cluster_time.to_bytes(8) + orders[0]
        assert all(one <= other for one, other in pairwise(orders)), "Redis would reject an ack"


def drain(feed: Feed, subscriber: Subscriber) -> list[Change]:
    found: list[Change] = []
    while isinstance(taken := feed.take(subscriber), Delivery):
        found += changes_of(taken.parts)
    return found


@given(HISTORIES, VERSIONS, CUTS, st.data())
@settings(max_examples=100)
def test_a_start_at_the_time_of_a_place_of_another_version(
    history: set[Change], versions: tuple[int, int], cuts: list[int], data: st.DataObject
) -> None:
    """The reader drops what a start at the cluster time brings again."""
    before, now = versions
    old = in_order(history, before)
    index = data.draw(st.integers(0, len(old) - 1))
    place = old[index].token(before)
    from_there = [each for each in in_order(history, now) if each.time >= old[index].time]
    delivered: list[Change] = []
    for chunk in chunks_of(from_there, now, ResumeToken.high_water_mark(place.cluster_time, now), cuts):
        first = chunk.first_after(place) if not delivered else 0
        assert chunk.bson is not None
        if first < chunk.count:
            delivered += changes_of((chunk.bson.cut(first, chunk.count),))
    check(delivered, old[index + 1 :], old[index])


@given(HISTORIES, VERSIONS, CUTS, st.data())
@settings(max_examples=100)
def test_ranges_that_meet_at_a_place_of_another_version(
    history: set[Change], versions: tuple[int, int], cuts: list[int], data: st.DataObject
) -> None:
    """What one range leaves out, the next one contains, whether it is retained or read again."""
    before, now = versions
    old = in_order(history, before)
    index = data.draw(st.integers(0, len(old) - 1))
    place = old[index].token(before)
    start, end = ResumeToken.high_water_mark(BEGIN, now), ResumeToken.high_water_mark(BEGIN + 100, now)
    deliveries = tuple(
        Delivery(1, chunk.count, (chunk.bson.data,), len(chunk.bson.data), len(chunk.bson.data), chunk.end, 0.0)
        for chunk in chunks_of(in_order(history, now), now, start, cuts)
        if chunk.bson is not None
    )
    kept = CachedRange(start, end, deliveries)
    first = [change for each in kept.read(start, place, 10**6) for change in changes_of(each.parts)]
    second = [change for each in kept.read(place, end, 10**6) for change in changes_of(each.parts)]
    assert set(first) | set(second) == history
    assert all(each.time == old[index].time for each in set(first) & set(second))
    if len(deliveries) == 1:
        assert not set(first) & set(second), "a single run of events is cut once"
    at, read = start, []
    for each in deliveries:
        cut = trimmed(each, at, place)
        read += changes_of(cut.parts) if cut is not None else []
        at = each.end
        if cut is not each or not place.is_after(at):
            break
    assert set(read) | set(second) == history


def test_the_very_event_is_known_in_both_versions() -> None:
    one, other = Change(1, 0, 1, 1, "insert"), Change(1, 0, 2, 1, "insert")
    assert one.token(2).is_of_passed_event(one.token(1))
    assert one.token(1).is_of_passed_event(one.token(2))
    assert not other.token(2).is_of_passed_event(one.token(1))
    assert not one.token(2).is_after(one.token(1))
    assert not one.token(2).reaches(one.token(1))
    marks = [ResumeToken.high_water_mark(BEGIN, version) for version in (1, 2)]
    assert marks[0].reaches(marks[1])
    assert marks[1].reaches(marks[0])


def test_fragments_of_the_very_event() -> None:
    change = Change(1, 0, 1, 1, "update")

    def fragment(n: int) -> ResumeToken:
        data = bytes.fromhex(bson.decode(change.token(2).raw)["_data"])
        return ResumeToken.from_key_string(data[:-1] + bytes.fromhex(number(n)) + data[-1:])

    def old(n: int) -> ResumeToken:
        data = bytes.fromhex(bson.decode(change.token(1).raw)["_data"])
        return ResumeToken.from_key_string(data[:-1] + bytes.fromhex(number(n)) + data[-1:])

    assert [fragment(n).is_of_passed_event(old(1)) for n in range(3)] == [True, True, False]
    assert [fragment(n).is_of_passed_event(change.token(1)) for n in range(3)] == [True, True, True]
    for passed in (fragment(1), change.token(2)):
        assert change.token(1).is_of_passed_event(passed.after_event())
    assert not change.token(1).is_of_passed_event(fragment(1).event_start())
    assert not change.token(2).is_of_passed_event(old(1)), "the event came in fragments, and there may be more of them"


def test_before_and_after_all_fragments_of_an_event() -> None:
    changes = [Change(1, txn, key, 1, "update") for txn, key in ((0, 1), (0, 2), (0, 3), (1, 2))]
    whole = changes[1].token(2)
    data = bytes.fromhex(bson.decode(whole.raw)["_data"])[:-1]
    parts = [ResumeToken.from_key_string(data + bytes.fromhex(number(n)) + b"\x04") for n in range(3)]
    start, after = parts[1].event_start(), parts[1].after_event()
    in_order = [changes[0].token(2), start, whole, *parts, after, changes[2].token(2), changes[3].token(2)]
    for earlier, later in pairwise(in_order):
        assert (later.is_after(earlier), later.reaches(earlier), earlier.reaches(later)) == (True, True, False)
    assert [each.may_be_inside_event for each in in_order] == [each in parts for each in in_order]
    assert [each.is_of_mongodb for each in in_order] == [each not in (start, after) for each in in_order]
    for each in (whole, *parts, after):
        assert each.after_event() == after
        assert each.event_raw() == whole.raw
    assert [each.event_start() for each in (start, whole, after)] == [start, whole, after]
    assert start.after_event() == start, "the feed changes once more, and the event is still to come"
    for each in (start, after):
        assert (ResumeToken.decode(each.raw), each.given) == (each, Given.AS_TIME)


def test_a_range_that_ends_among_events_of_one_time_leaves_them_to_the_next() -> None:
    earlier, one, other = Change(1, 0, 1, 1, "insert"), Change(2, 0, 1, 1, "insert"), Change(2, 0, 2, 1, "insert")
    start = ResumeToken.high_water_mark(BEGIN, 2)
    data = b"".join(each.data(2) for each in (earlier, one, other))
    delivery = Delivery(1, 3, (data,), len(data), len(data), other.token(2), 0.0)
    cut = trimmed(delivery, start, other.token(1))
    assert cut is not None
    assert changes_of(cut.parts) == [earlier]
    cut = trimmed(delivery, start, one.token(1))
    assert cut is not None
    assert changes_of(cut.parts) == [earlier, one]
