"""The account of the process's memory: pools that tenants share, and what gives way to them."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from feedmux_server.core.limits.memory import Held, Memory, Pool, _Kind
from feedmux_server.core.limits.rings import EVICTED_AT_ONCE
from tests.unit.core.limits.test_rings import Pieces

MIB = 1 << 20


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


def test_what_one_turn_cannot_evict_goes_in_the_next_ones() -> None:
    memory, steps = Memory(64 * MIB), list[Callable[[], bool]]()
    memory.rings.in_parts = lambda step: steps.append(step) if step() else None
    ring = Pieces(memory.rings, 64 * 1024, 1024)
    memory.unsent.hold("a", MIB)
    assert (memory.evicting, len(ring)) == (True, 64 * 1024 - EVICTED_AT_ONCE)
    memory.unsent.hold("a", MIB)
    assert len(ring) == 64 * 1024 - 2 * EVICTED_AT_ONCE
    (step,) = steps
    while step():
        assert memory.evicting
    assert not memory.evicting
    assert memory.bytes == memory.bytes_max


def test_a_small_bound_is_looked_at_more_often() -> None:
    memory = Memory(64_000)
    ring = Pieces(memory.rings, 70, 1_000)
    memory.grew(999)
    assert ring.bytes == 70_000
    memory.grew(1)
    assert ring.bytes == 64_000
