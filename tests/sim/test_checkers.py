"""Test the checkers on hand-written histories."""

from dataclasses import replace

import pytest

from feedmux_server.core.positions.ahead import mark_of
from tests.sim.checkers import check
from tests.sim.events import BEGIN, event_token, hex_of
from tests.sim.records import (
    GAP,
    Acked,
    Changed,
    Committed,
    Delivered,
    Ended,
    Handled,
    Held,
    Holds,
    Hosted,
    Joined,
    Kept,
    Left,
    Lost,
    Opened,
    Progress,
    Record,
    Released,
    Removed,
    Renewed,
    Restored,
    Sent,
    SetAside,
    Settled,
    Sought,
    Started,
    Written,
)


def place(n: int) -> str:
    return hex_of(event_token(BEGIN + n, key=n))


WRITTEN: list[Record] = [
    Written("e1", place(1)),
    Written("e2", place(2), unit="t"),
    Written("e3", place(3), unit="t"),
    Written("e4", place(4), feeds=("other",)),
    Written("e5", place(5)),
]
OPEN = Opened("s", "s/1", place(0), feed="mine", epoch=1, unacked_max=3)


def deliver(*events: str, first: int = 1, at: str = "") -> Delivered:
    return Delivered("s/1", first, events, (10,) * len(events), at)


CHANGED: list[Record] = [
    Changed(place(1), "a", "1"),
    Changed(place(2), "c", "2"),
    Changed(place(3), "a", "3"),
    Changed(place(4), "c", ""),
    Changed(place(5), "b", "5"),
]


def holds(at: int, *documents: str, copied: str | None = None, is_last: bool = False) -> Holds:
    return Holds("sink", place(at), documents, copied is not None, copied or "", is_last)


OF_GROUP: list[Record] = [
    *(Written(f"g{n}", place(20 + n), ("crew",), key=key) for n, key in enumerate(("a/1", "a/1", "a/2", ""))),
    Kept("g", 0, place(19)),
    Joined("g", "m1", 1, "crew"),
    Joined("g", "m2", 1, "crew"),
]


def started(member: str, event: str, attempt: int = 1, at_s: float = 1.0) -> Started:
    return Started("g", member, member, event, attempt, at_s)


def handled(member: str, event: str, result: str = "done") -> Handled:
    return Handled("g", member, event, result)


def done(event: str) -> list[Record]:
    return [started("m1", event), handled("m1", event)]


NEXT_HOST: list[Record] = [
    Left("g", "m1", overdue=True),
    Hosted("g", 2, at_s=20.0),
    Joined("g", "m1", 2, "crew", at_s=21.0),
    Joined("g", "m2", 2, "crew", at_s=23.0),
]


def follows(event: str) -> SetAside:
    return SetAside("g", event, 3, quarantines=True)


def rejected(event: str) -> list[Record]:
    return [started("m1", event), handled("m1", event, "rejected"), follows(event)]


HOLE = mark_of(event_token(BEGIN + 20, key=20).raw).hex()
"""Of g0."""


def test_a_restored_source_has_another_history() -> None:
    restored: list[Record] = [Restored(BEGIN + 2, BEGIN + 9), Written("e9", place(9))]

    def found(*records: Record, reconnects: bool = False) -> list[str]:
        opened = replace(OPEN, reconnects=reconnects, unacked_max=0)
        violations = check([*WRITTEN, opened, deliver("e1", "e2", at=place(2)), *records])
        return [each.guarantee for each in violations]

    assert found(*restored, deliver("e9", first=3, at=place(9)), Settled()) == []
    assert "Convergent" in found(*restored, Settled())
    assert found(deliver("e3", first=3, at=place(3)), *restored, Ended("s/1", "TIMELINE_FORKED")) == []
    lost: list[Record] = [deliver("e3", first=3), *restored, deliver("e9", first=4)]
    assert found(*lost) == ["One history"]
    assert found(Progress("s/1", place(3)), *restored, deliver("e9", first=3)) == ["One history"]
    assert found(*lost, reconnects=True) == []
    assert found(lost[0], Acked("s/1", 3), *lost[1:], reconnects=True) == ["One history"]
    gap: list[Record] = [Ended("s/1", GAP), Opened("s", "s/1+", place(0), feed="mine"), Committed("s", 1, place(0))]
    assert found(deliver("e3", first=3), Committed("s", 1, place(3)), *restored, *gap) == []
    twice = [*gap, Committed("s", 1, place(2)), Committed("s", 1, place(0))]
    assert found(deliver("e3", first=3), Committed("s", 1, place(3)), *restored, *twice) == ["Monotone commit"]
    again: list[Record] = [
        *restored,
        Opened("s", "s/2", place(2), feed="mine", epoch=2),
        Delivered("s/2", 1, ("e9",), (), place(9)),
    ]
    left: list[Record] = [Acked("s/1", 2), deliver("e3", first=3), Ended("s/1")]
    renewed = Renewed("s", 1)
    told_twice: list[Record] = [*left[:-1], renewed, renewed, left[-1]]
    for known in ([*left, Renewed("s", 1, is_last=True)], told_twice):
        assert found(*known, *again) == ["One history"], "acknowledged or not"
        for told in (Sought("s", place(2), epoch=1), Lost("s", place(2))):
            assert found(*known, told, *again) == []
        gap = [Ended("s/2", GAP), replace(OPEN, session="s/2+", place=place(2), epoch=0)]
        assert found(*known, *again[:-1], *gap, Delivered("s/2+", 1, ("e9",), (), place(9))) == []
    assert found(*left, renewed, *again) == [], "the server was killed before it wrote again"
    copied: list[Record] = [*CHANGED, Restored(BEGIN + 2, BEGIN + 9)]
    now = Holds("sink", place(9), ("a=1", "c=2"), is_last=True)
    assert check([*copied, holds(4, "a=3"), now]) == []


BAD: list[tuple[str, list[Record]]] = [
    ("Ordered", [OPEN, deliver("never written")]),
    ("Unique", [OPEN, deliver("e1"), deliver("e2", first=3)]),
    ("At least once", [OPEN, Committed("s", 1, place(2)), Opened("s", "s/2", place(1), feed="mine")]),
    ("Resumable or loud", [OPEN, Ended("s/1", "FEED_INVALIDATED")]),
    ("Resumable or loud", [Opened("s", "s/1", place(0), unknown_place=True), deliver("e1")]),
    ("Bounded", [Held("ring", 11, 10)]),
    ("Monotone commit", [OPEN, Committed("s", 1, place(2)), Committed("s", 1, place(1))]),
    ("Monotone commit", [OPEN, Committed("s", 1, place(2)), Lost("s", place(1)), Committed("s", 1, place(0))]),
    ("Fenced", [OPEN, Opened("s", "s/2", place(0), epoch=1)]),
    ("Snapshot exact", [*CHANGED, holds(2, "a=1", "c=2", copied="b")]),
    ("Snapshot exact", [*CHANGED, holds(2, copied="b")]),
    ("Snapshot exact", [*CHANGED, holds(3, "a=1", copied="b")]),
    ("Snapshot exact", [*CHANGED, holds(3, "a=3")]),
    ("Snapshot converges", [*CHANGED, holds(5, "a=3", "b=5", "c=2", is_last=True)]),
]


OF_GROUP_BAD: list[tuple[str, list[Record]]] = [
    ("Key exclusive", [started("m1", "g0"), started("m2", "g1")]),
    ("Key exclusive", [started("m1", "g0"), started("m2", "g3")]),
    ("Key exclusive", [started("m1", "g0"), *NEXT_HOST, started("m2", "g1")]),
    ("Settled stays settled", [*done("g0"), *NEXT_HOST, started("m2", "g0")]),
    ("Key order", [*done("g1"), *done("g0")]),
    ("Key order", [*done("g3"), *done("g2")]),
    ("Settled stays settled", [*done("g2"), Kept("g", 1, place(19), place(22), (HOLE,)), started("m2", "g2")]),
    ("Settled stays settled", [*done("g0"), Kept("g", 1, place(20)), started("m2", "g0")]),
    ("Covered", [Kept("g", 1, place(20))]),
    ("Covered", [Kept("g", 1, place(19), place(22), (HOLE,))]),
    ("Dead letters durable", [started("m1", "g0"), handled("m1", "g0", "rejected"), Kept("g", 1, place(20))]),
    ("Set aside rightly", [Sent("g", "m1", ("g0",), ("g0",)), started("m1", "g0", attempt=2)]),
    ("Set aside rightly", [Sent("g", "m1", ("g0",), ("g0",)), started("m1", "g0"), SetAside("g", "g0", 2)]),
    ("Key order", [*rejected("g0"), *done("g1")]),
    ("Key order", [*rejected("g0"), follows("g1"), *done("g1")]),
    ("Key order", [*rejected("g0"), follows("g1"), *done("g0"), follows("g0"), *done("g1")]),
    ("Dead letters durable", [*rejected("g0"), started("m1", "g0"), Removed("g", "g0")]),
]


@pytest.mark.parametrize(("guarantee", "records"), OF_GROUP_BAD)
def test_a_bad_history_of_a_group_is_noticed(guarantee: str, records: list[Record]) -> None:
    assert {violation.guarantee for violation in check([*OF_GROUP, *records])} == {guarantee}


def test_a_member_carries_nothing_over_that_its_host_may_have_given_to_others() -> None:
    before, others = started("m1", "g0"), started("m2", "g0")
    left, hosted, *joined = NEXT_HOST
    late: list[Record] = [replace(each, at_s=22.6) if isinstance(each, Joined) else each for each in joined]
    for between in (
        [left, Released("g", "LEASE"), hosted, *joined],
        [Released("g", "SESSION"), hosted, *joined],
        [Released("g", "SESSION"), before, hosted, *joined],
        [Lost("g", place(19)), hosted, *joined],
        [left, Joined("g", "m1", 1, "crew"), hosted, *joined],
        [Left("g", "m1", for_good=True), hosted, *joined],
        [hosted, *late],
        [Sought("g", place(19), epoch=1), before, hosted, *joined],
    ):
        assert check([*OF_GROUP, before, *between, others]) == []
    after_seek: list[Record] = [
        Sought("g", place(19), epoch=1),
        *NEXT_HOST,
        before,
        Hosted("g", 3, at_s=30.0),
        Joined("g", "m1", 3, "crew", at_s=31.0),
        Joined("g", "m2", 3, "crew", at_s=31.0),
    ]
    assert [each.guarantee for each in check([*OF_GROUP, *after_seek, others])] == ["Key exclusive"]


def test_what_a_member_has_begun_before_it_hears_of_a_seek_says_nothing_of_the_order_after_it() -> None:
    assert check([*OF_GROUP, Sought("g", place(19), epoch=2), *done("g1"), *NEXT_HOST, *done("g0")]) == []


@pytest.mark.parametrize(("guarantee", "records"), BAD)
def test_a_bad_history_is_noticed(guarantee: str, records: list[Record]) -> None:
    assert {violation.guarantee for violation in check([*WRITTEN, *records], [guarantee])} == {guarantee}


def test_what_came_after_a_gap_comes_again_after_a_gap_alone() -> None:
    """Where the server is lost before the position of the first gap is stored, the next session opens at the former."""
    first = Opened("s", "s/1", place(1), feed="mine", epoch=1)
    back = replace(first, session="s/1+", place=place(0), epoch=0)
    got: list[Record] = [first, Ended("s/1", GAP), back, replace(deliver("e1"), session="s/1+"), Ended("s/1+")]
    again: list[Record] = [*WRITTEN, *got, replace(first, session="s/2", epoch=2)]
    gap: list[Record] = [Ended("s/2", GAP), replace(back, session="s/2+"), replace(deliver("e1"), session="s/2+")]
    late: list[list[Record]] = [[], [Ended("s/2")], [replace(deliver("e2"), session="s/2"), *gap]]
    assert check([*again, *gap], ["At least once"]) == []
    for without in late:
        assert check([*again, *without], ["At least once"])


def test_a_seek_that_was_lost_is_stored_again() -> None:
    records: list[Record] = [
        OPEN,
        Sought("s", place(1)),
        Lost("s", place(2)),
        Committed("s", 2, place(1)),
        Committed("s", 2, place(2)),
    ]
    assert not check(records, ["Monotone commit"])


def test_an_invalidate_ends_a_session_that_stops_there() -> None:
    written = [Written("e1", place(1)), Written("end", place(2), invalidate=True), Written("e3", place(3))]
    after: list[Record] = [*written, Opened("s", "s/1", place(0)), deliver("e1", "end", "e3")]
    assert [violation.guarantee for violation in check(after)] == ["Resumable or loud"]
    continues: list[Record] = [*written, Opened("s", "s/1", place(0), stops_at_invalidate=False), after[-1]]
    assert check(continues) == []
    untold: list[Record] = [*after[:-1], deliver("e1", "end"), Settled()]
    assert "Resumable or loud" in [violation.guarantee for violation in check(untold)]


def test_places_that_are_not_known_are_not_judged() -> None:
    unplaced: list[Record] = [Written("e1"), Written("e2"), Opened("s", "s/1"), deliver("e2"), Settled()]
    assert check(unplaced) == []


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="written twice"):
        check([WRITTEN[0], WRITTEN[0]])
    with pytest.raises(ValueError, match="opened twice"):
        check([OPEN, OPEN])
    with pytest.raises(ValueError, match="is not open"):
        check([OPEN, Ended("s/1"), deliver("e1")])
    with pytest.raises(ValueError, match="not in order"):
        check([WRITTEN[1], WRITTEN[0], OPEN])
