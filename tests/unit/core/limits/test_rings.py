"""Which rings give way when memory is needed: large ones in turn; awaited events and last pieces only at the end."""

from typing import Any

from feedmux_server.core.limits.rings import EVICTED_AT_ONCE, NOT_HELD, Rings
from tests.tables import over


class Pieces:
    """An evictable holder with pieces of a given size."""

    def __init__(self, rings: Rings, pieces: int, size: int) -> None:
        self.size_class = NOT_HELD
        self.grown = 0
        self.awaited = False
        self.asked = 0
        self.bytes = 0
        self._rings = rings
        self._pieces: list[int] = []
        for _ in range(pieces):
            self.grow(size)

    def __len__(self) -> int:
        return len(self._pieces)

    def grow(self, size: int) -> None:
        self._pieces.append(size)
        self.bytes += size
        self._rings.changed(self, size)

    def unawaited(self) -> int:
        self.asked += 1
        return 0 if self.awaited else len(self)

    def oldest_cost(self) -> int:
        return 1

    def drop_oldest(self) -> int:
        size = self._pieces.pop(0)
        self.bytes -= size
        self._rings.changed(self, -size)
        return size


def test_last_pieces_go_when_all_else_has_gone_and_the_last_awaited_one_stays() -> None:
    rings = Rings()
    some = [Pieces(rings, 2, 100), Pieces(rings, 1, 5000), Pieces(rings, 1, 100), Pieces(rings, 1, 100)]
    rings.evict(100)
    assert [len(each) for each in some] == [1, 1, 1, 1]
    rings.evict(1)
    assert [len(each) for each in some] == [1, 0, 1, 1], "evicts the ring that grew least recently"
    for each in some:
        each.awaited = True
    some[2].drop_oldest()
    some[2].grow(100)
    rings.evict(1 << 40)
    assert [len(each) for each in some] == [0, 0, 1, 0]
    assert rings.bytes == 100
    some[2].awaited = False
    rings.evict(1)
    assert rings.bytes == 0


def test_what_is_awaited_goes_when_nothing_else_is_left() -> None:
    rings = Rings()
    some = [Pieces(rings, 4, 100), Pieces(rings, 4, 100), Pieces(rings, 1, 100), Pieces(rings, 1, 100)]
    some[0].awaited = some[2].awaited = True
    rings.evict(300)
    assert [len(each) for each in some] == [4, 1, 1, 1], "evicts from the largest ring that no subscriber awaits"
    some[3].grow(100)
    some[1].grow(100)
    rings.evict(200)
    assert [len(each) for each in some] == [4, 1, 1, 1]
    rings.evict(100)
    assert [len(each) for each in some] == [4, 1, 1, 0], "evicts last pieces before awaited pieces"
    rings.evict(200)
    assert [len(each) for each in some] == [3, 0, 1, 0]


def test_of_what_is_awaited_goes_what_was_read_first() -> None:
    rings = Rings()
    some = [Pieces(rings, 4, 100), Pieces(rings, 8, 1000), Pieces(rings, 3, 100)]
    for each in some:
        each.awaited = True
    some[0].grow(100)
    rings.evict(7_001)
    assert [len(each) for each in some] == [5, 1, 2]
    rings.evict(101)
    assert [len(each) for each in some] == [4, 1, 1]


def test_spared_ones_stay_in_turn() -> None:
    rings = Rings()
    some = [Pieces(rings, 10, 100) for _ in range(3)]
    some[1].awaited = True
    rings.evict(200)
    assert [len(each) for each in some] == [9, 10, 9]
    some[1].awaited = False
    rings.evict(300)
    assert [len(each) for each in some] == [8, 9, 8]


def test_a_thousand_last_pieces_do_not_go_at_once() -> None:
    rings = Rings()
    some: list[Any] = [Pieces(rings, 1, 100) for _ in range(1000)]
    rings.evict(1 << 40)
    left = sum(map(len, some))
    assert 400 < left < 1000
    while rings.bytes:
        rings.evict(1 << 40)
    assert not any(some)


@over("count", [10, 100, 1_000])
def test_few_pieces_go_at_once_and_each_ring_is_asked_once_for_its_subscribers(count: int) -> None:
    """A ring can have 70,000 chunks, and hundreds of subscribers."""
    rings = Rings()
    some = [Pieces(rings, count, 100) for _ in range(3)]
    left, more = rings.bytes, True
    while more:
        more = rings.evict(rings.bytes - 300)
        assert left - rings.bytes <= 100 * EVICTED_AT_ONCE
        assert more == (rings.bytes > 300)
        left = rings.bytes
        assert max(each.asked for each in some) <= 1
        for each in some:
            each.asked = 0
    assert [len(each) for each in some] == [1, 1, 1]
