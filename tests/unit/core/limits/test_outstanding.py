"""What clients have not acknowledged: bounded for each tenant, and for all tenants together."""

from collections.abc import Callable
from functools import partial

from feedmux_server.core.limits.outstanding import Backlog, Outstanding
from tests.tables import over


def test_room_comes_back_with_acks_and_wakes_who_waits() -> None:
    woken: list[str] = []
    outstanding = Outstanding(100, Backlog())
    room = []
    for _ in range(2):
        room.append(outstanding.has_room)
        outstanding.hold(60)
    assert [*room, outstanding.has_room] == [True, True, False]
    outstanding.when_room(lambda: woken.append("one"))
    outstanding.release(10)
    assert not woken
    outstanding.release(20)
    assert woken == ["one"]
    outstanding.release(90)
    assert woken == ["one"]


def test_a_backlog_at_its_bound_pauses_its_own_tenant_until_it_acknowledges() -> None:
    woken: list[str] = []
    outstanding = Outstanding(100, Backlog())
    outstanding.retain(99)
    assert [outstanding.has_room, outstanding.note_backlog()] == [True, False]
    outstanding.retain(1)
    assert [outstanding.has_room, outstanding.backlog_fits] == [False, False]
    assert [outstanding.note_backlog() for _ in range(3)] == [True, False, False], "it is reported once"
    outstanding.when_room(lambda: woken.append("one"))
    outstanding.retain(-1)
    assert woken == ["one"]
    outstanding.retain(1)
    assert outstanding.note_backlog(), "and reported again, when the backlog reaches its bound again"


def test_all_backlogs_together_are_bounded_and_the_largest_pay() -> None:
    backlog = Backlog()
    backlog.bytes_max = 100
    woken: list[str] = []
    sizes = {"most": 60, "some": 39, "least": 10, "none": 0}
    tenants = {name: Outstanding(1 << 30, backlog) for name in sizes}
    for name, size in sizes.items():
        tenants[name].retain(size)
    assert backlog.bytes == 109
    paused = [name for name, each in tenants.items() if not each.has_room]
    assert paused == ["most", "some"], "a tenant with less than an equal share continues"
    for name in paused:
        tenants[name].when_room(lambda name=name: woken.append(name))  # type: ignore[misc]
    tenants["most"].retain(-8)
    assert not woken
    tenants["most"].retain(-8)
    assert sorted(woken) == ["most", "some"], "an ack of another tenant wakes a tenant that waits for it"
    for name, size in (("most", 44), ("some", 39), ("least", 10)):
        tenants[name].retain(-size)
    assert (backlog.bytes, backlog.tenants) == (0, {})


@over("count", [10, 100, 1_000])
def test_what_a_tenant_releases_visits_others_only_when_they_may_have_room(count: int) -> None:
    visited = list[Outstanding]()

    class Counted(Outstanding):
        def _wake_if_room(self) -> None:
            visited.append(self)
            super()._wake_if_room()

    backlog = Backlog()
    backlog.bytes_max = 10
    tenants = [Counted(1 << 30, backlog) for _ in range(count)]
    for each in tenants:
        each.retain(100)
    for _ in range(99):
        tenants[0].retain(-1)
    assert set(visited) == {tenants[0]}, "the backlog stays full"
    tenants[0].retain(-1)
    assert set(visited) == set(tenants), "the shares of the others have grown"


@over("count", [10, 100, 1_000])
def test_an_ack_wakes_one_of_those_who_wait_for_its_room(count: int) -> None:
    backlog, steps, woken = Backlog(), list[Callable[[], bool]](), list[int]()
    backlog.in_turns = lambda step: steps.append(step) if step() else None
    outstanding = Outstanding(100, backlog)
    outstanding.hold(100)
    for number in range(count):
        outstanding.when_room(partial(woken.append, number))
    for acks in range(1, 6):
        outstanding.release(10)
        assert woken == list(range(acks)), "in the order in which they have waited"
        outstanding.hold(10)
        (step,) = steps
        assert not step()
        steps.clear()


@over("count", [10, 100, 1_000])
def test_room_that_nobody_takes_wakes_all_in_turns(count: int) -> None:
    """Those who are woken may have nothing to take any more."""
    backlog, steps, woken = Backlog(), list[Callable[[], bool]](), list[int]()
    backlog.in_turns = lambda step: steps.append(step) if step() else None
    outstanding = Outstanding(100, backlog)
    outstanding.hold(100)
    for number in range(count):
        outstanding.when_room(partial(woken.append, number))
    outstanding.release(10)
    outstanding.release(10)
    (step,) = steps
    turns = 1
    while step():
        turns += 1
        assert len(woken) == 2**turns - 1
    assert woken == list(range(count))
    outstanding.hold(80)
    outstanding.when_room(partial(woken.append, -1))
    outstanding.release(90)
    assert woken[-1] == -1, "it begins again"


def test_a_member_of_a_group_is_woken_though_the_backlog_is_full() -> None:
    """What it takes is in the backlog, and leaves it only when it is settled."""
    woken = list[str]()
    outstanding = Outstanding(100, Backlog())
    outstanding.hold(100)
    outstanding.retain(100)
    for name in ("subscription", "another"):
        outstanding.when_room(partial(woken.append, name))
    outstanding.when_within_quota(partial(woken.append, "member"))
    outstanding.release(1)
    assert woken == ["member"]
    outstanding.when_within_quota(partial(woken.append, "member"))
    outstanding.retain(-1)
    assert woken == ["member", "subscription", "another", "member"], "and otherwise in the order in which they wait"


def test_who_is_woken_and_finds_the_room_taken_keeps_its_place() -> None:
    """A session whose own acknowledgement has made the room may take it, and has not waited."""
    backlog, steps, woken = Backlog(), list[Callable[[], bool]](), list[str]()
    backlog.in_turns = lambda step: steps.append(step) if step() else None
    outstanding = Outstanding(100, backlog)
    first, second = partial(woken.append, "first"), partial(woken.append, "second")

    def ack(taken_by: Callable[[], None] | None = None) -> None:
        outstanding.release(10)
        outstanding.hold(10, taken_by)
        outstanding.when_room(first)
        steps.pop()()

    outstanding.hold(100)
    outstanding.when_room(first)
    outstanding.when_room(second)
    for taken_by in (None, None, first, second):
        ack(taken_by)
    assert woken == ["first", "first", "first", "second"]
