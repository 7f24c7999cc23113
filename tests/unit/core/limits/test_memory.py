"""The account of the process's memory: pools that tenants share, and which data is evicted first."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from feedmux_server.core.limits.memory import Held, Memory, Pool, _Kind
from feedmux_server.core.limits.rings import NOT_HELD, Rings

MIB = 1 << 20


class Pieces:
    """An evictable holder with pieces of a given size."""

    def __init__(self, rings: Rings, pieces: int, size: int) -> None:
        self.size_class = NOT_HELD
        self.grown = 0
        self.awaited = False
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

    def is_awaited(self) -> bool:
        return self.awaited

    def drop_oldest(self) -> int:
        size = self._pieces.pop(0)
        self.bytes -= size
        self._rings.changed(self, -size)
        return size


def takes(pool: Pool, tenant: str, size: int) -> list[Held]:
    """Hold as many pieces as the tenant has room for."""
    held = []
    while size <= pool.room(tenant):
        held.append(pool.hold(tenant, size))
    return held


def test_one_tenant_takes_half_and_two_a_third_each() -> None:
    pool = Pool(300)
    first = takes(pool, "a", 1)
    assert len(first) == 149
    assert len(takes(pool, "b", 1)) == 74, "there is room for a tenant that comes later"
    for each in first[:50]:
        each.release()
    assert len(takes(pool, "b", 1)) == 25
    assert pool.bytes == 198


def test_large_pieces_leave_room_for_smaller_ones_and_small_ones_need_none() -> None:
    pool = Pool(1600, small_bytes=10)
    assert [len(takes(pool, "a", size)) for size in (400, 200, 100, 50, 25)] == [1, 1, 1, 1, 1]
    assert pool.room("a") == 12
    for _ in range(100):
        pool.hold("a", 10)
    assert (pool.room("a"), pool.may_overdraw("a")) == (12, True)
    assert pool.bytes == 775 + 1000


def test_each_tenant_may_hold_one_piece_that_has_no_room_and_takes_none_from_others() -> None:
    pool = Pool(100)
    large = pool.hold("a", 1000)
    assert not pool.may_overdraw("a")
    assert pool.may_overdraw("b")
    assert pool.room("a") == pool.room("b") == 25
    assert pool.bytes == 1000
    large.release()
    large.release()
    assert pool.may_overdraw("a")
    assert pool.bytes == 0


def test_those_who_wait_are_woken_tenant_by_tenant() -> None:
    pool, woken = Pool(100), list[str]()
    held = pool.hold("a", 50)
    for number in range(40):
        pool.when_room("a", lambda number=number: woken.append(f"a{number}"))  # type: ignore[misc]

    def gone() -> None:
        woken.append("c")

    pool.when_room("b", lambda: woken.append("b"))
    pool.when_room("c", gone)
    pool.waits_no_longer("c", gone)
    held.release()
    assert woken[:3] == ["a0", "b", "a1"]
    assert len(woken) < 40, "the waiters are not woken all at once"


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.booleans())))
def test_a_pool_never_holds_more_than_its_bound_and_one_piece_each(steps: list[tuple[str, int, bool]]) -> None:
    pool, held = Pool(100), list[Held]()
    for tenant, size, give_back in steps:
        if give_back and held:
            held.pop(size % len(held)).release()
        elif size <= pool.room(tenant) or pool.may_overdraw(tenant):
            held.append(pool.hold(tenant, size))
        assert pool.bytes == sum(each.size for each in held)
        assert sum(each.size for each in held if each.kind is not _Kind.OVERDRAWN) <= 100
        overdrawn = [each.tenant for each in held if each.kind is _Kind.OVERDRAWN]
        assert len(overdrawn) == len(set(overdrawn))
    for each in held:
        each.release()
    assert pool.bytes == 0
    assert pool.room("a") == 25


def test_rings_give_way_to_what_cannot_be_taken_back() -> None:
    memory = Memory(64 * MIB)
    ring = Pieces(memory.rings, 60, MIB)
    beside = {"others": 0}
    memory.include("others", lambda: beside["others"], 7)
    memory.unsent.hold("a", 16 * MIB)
    assert (ring.bytes, memory.bytes) == (48 * MIB, 64 * MIB)
    beside["others"] = 8 * MIB
    memory.grew(MIB - 1)
    assert ring.bytes == 48 * MIB, "the sum is checked once for each MiB"
    memory.grew(1)
    assert (ring.bytes, memory.bytes) == (40 * MIB, 64 * MIB)
    assert memory.limits == {"rings": 40 * MIB, "unsent": 16 * MIB, "requests": 8 * MIB, "others": 7}


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


def test_a_small_bound_is_looked_at_more_often() -> None:
    memory = Memory(64_000)
    ring = Pieces(memory.rings, 70, 1_000)
    memory.grew(999)
    assert ring.bytes == 70_000
    memory.grew(1)
    assert ring.bytes == 64_000
