"""Pinned ranges: slices are consecutive and complete, and reading a slice gives exactly its events."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.delivery.cached_range import CachedRange, trimmed
from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.events.chunk import cut_batch
from feedmux_server.core.positions.resume_token import Copied
from tests.sim.events import event
from tests.unit.core.delivery.streams_support import mark, token


def delivery(first: int, count: int, *, past: bool = False) -> Delivery:
    """`count` events from event `first` on, ending at the last event or at the position after it."""
    last = first + count - 1
    data = b"".join(event(number, token(number)).data for number in range(first, last + 1))
    end = mark(last) if past else token(last)
    (chunk,) = cut_batch(data, token(first - 1), end, 1.0, bytes_max=len(data))
    return Delivery(first, count, (data,), len(data), len(data), chunk.end, 1.0)


def numbers(deliveries: list[Delivery]) -> list[bytes]:
    found = []
    for each in deliveries:
        data = b"".join(each.parts)
        while data:
            size = int.from_bytes(data[:4], "little")
            found.append(data[:size])
            data = data[size:]
    return found


def truth(first: int, last: int) -> list[bytes]:
    return [event(number, token(number)).data for number in range(first, last + 1)]


@st.composite
def ranges(draw: st.DrawFn) -> tuple[CachedRange, int]:
    first, deliveries = 1, []
    for count in draw(st.lists(st.integers(1, 9), max_size=6)):
        deliveries.append(delivery(first, count, past=draw(st.booleans())))
        first += count
    return CachedRange(mark(0), mark(first + 1), tuple(deliveries)), first - 1


@given(ranges(), st.integers(1, 12), st.integers(1, 3000))
def test_slices_are_the_range_in_parts(made: tuple[CachedRange, int], wanted: int, payload_max: int) -> None:
    kept, last = made
    slices = list(kept.slices(wanted))
    assert len(slices) <= wanted
    assert bool(slices) == bool(last)
    at, read = kept.after, list[bytes]()
    for each in slices:
        assert each.after == at
        assert kept.covers(each.after, each.until)
        deliveries = list(kept.read(each.after, each.until, payload_max))
        got = numbers(deliveries)
        assert (len(got), sum(map(len, got))) == (each.count, each.size)
        assert each.count > 0
        assert each is not slices[-1] or deliveries[-1].end == kept.end, "nothing is left to request"
        assert [d.first_sequence for d in deliveries] == [
            1 + sum(d.count for d in deliveries[:index]) for index in range(len(deliveries))
        ]
        assert all(d.size <= payload_max or d.count == 1 for d in deliveries)
        assert not deliveries[-1].end.is_after(each.until)
        read += got
        at = each.until
    if slices:
        assert at == kept.end
    assert read == truth(1, last)


@given(ranges(), st.data())
def test_any_part_of_it_can_be_read(made: tuple[CachedRange, int], data: st.DataObject) -> None:
    kept, last = made
    low = data.draw(st.integers(0, last))
    high = data.draw(st.integers(low, last))
    for after in (token(low) if low else mark(0), mark(low)):
        for until in (token(high) if high else mark(0), mark(high)):
            if after.is_after(until):
                continue
            assert numbers(list(kept.read(after, until, 1 << 20))) == truth(low + 1, high)


def test_equal_slices_of_equal_events() -> None:
    kept = CachedRange(mark(0), mark(101), (delivery(1, 60), delivery(61, 40)))
    assert [each.count for each in list(kept.slices(4))] == [25, 25, 25, 25]
    assert [each.count for each in list(kept.slices(1))] == [100]


def test_changes_that_end_at_an_invalidate_that_is_not_shown() -> None:
    """The position after it covers no document, and those of the changes before it do."""
    until = mark(10).while_copying(Copied(b"", 5))
    whole = replace(delivery(1, 10, past=True), end=until)
    after = mark(0).while_copying(Copied(b"a", 5))
    pieces = list(CachedRange(after, until, (whole,)).read(after, until, 500))
    assert [each.end.copied for each in pieces] == [Copied(b"a", 5)] * (len(pieces) - 1) + [until.copied]
    assert len(pieces) > 1


def test_a_delivery_is_trimmed_at_a_place() -> None:
    whole = delivery(1, 10, past=True)
    assert trimmed(whole, mark(0), mark(10)) is whole
    assert trimmed(whole, mark(0), mark(0)) is None
    cut = trimmed(whole, mark(0), token(4))
    assert cut is not None
    assert (cut.count, cut.end, numbers([cut])) == (4, token(4), truth(1, 4))
    # All its events are within the cut; only the position after them is not.
    all_of_it = trimmed(whole, mark(0), token(10))
    assert all_of_it is not None
    assert (all_of_it.count, all_of_it.end) == (10, token(10))
