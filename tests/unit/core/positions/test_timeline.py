"""Which positions a restore has taken away."""

import pytest

from feedmux_server.core.errors import ErrorReason
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.timeline import FORKS_MAX, Fork, OplogEntry, TimelineRecord
from tests.sim.events import event_token
from tests.tables import over

COPIED, RESTORED = OplogEntry(100 << 32 | 5, 1), OplogEntry(200 << 32 | 1, 2)
EXACT = Fork.between(COPIED, RESTORED)


def mark(time: int) -> ResumeToken:
    return ResumeToken.high_water_mark(time)


@over(
    ("place", "lost"),
    [
        (event_token(COPIED.time, key=1), False),
        (mark(COPIED.time + 1), False),
        (mark(COPIED.time + 2), True),
        (event_token(COPIED.time + 1, key=1), True),
        (event_token(RESTORED.time - 1, key=1), True),
        (mark(RESTORED.time), False),
        (event_token(RESTORED.time, key=1), False),
    ],
)
def test_what_is_between_the_copy_and_its_restore_is_lost(place: ResumeToken, lost: bool) -> None:
    assert EXACT.has_lost(place) is lost


def test_a_reader_from_before_the_restore_has_lost_what_is_after_the_copy() -> None:
    later = event_token(RESTORED.time + 1, key=1)
    assert EXACT.may_have_lost(later)
    assert not EXACT.has_lost(later), "somebody else's is of the present history"
    assert not EXACT.may_have_lost(event_token(COPIED.time, key=1))


@over(
    "fork",
    [
        Fork(),
        Fork.between(RESTORED, None),
        Fork.between(None, RESTORED),
        Fork.between(RESTORED, OplogEntry(RESTORED.time + 9, 2)),
    ],
)
def test_without_the_election_of_the_restore_any_reader_may_have_lost_history(fork: Fork) -> None:
    assert fork.may_have_lost(event_token(1 << 32, key=1))
    assert fork.error("main").metadata == {}


def test_the_error_says_how_far_the_histories_are_equal() -> None:
    error = EXACT.error("main")
    assert (error.reason, error.metadata) == (
        ErrorReason.TIMELINE_FORKED,
        {"last_common_time": "1970-01-01T00:01:40Z"},
    )


@over(("found", "gone"), [(None, True), (OplogEntry(7, 2), True), (OplogEntry(7, 1), False)])
def test_an_entry_is_known_by_its_time_and_term(found: OplogEntry | None, gone: bool) -> None:
    assert OplogEntry(7, 1).is_other_than(found) is gone
    assert OplogEntry(7, None).is_other_than(found) is (found is None)


def test_a_record_is_read_as_it_was_written() -> None:
    record = TimelineRecord(RESTORED, (EXACT, Fork(3, 7)))
    assert TimelineRecord.decode(record.encode()) == record
    assert TimelineRecord.decode("") == TimelineRecord()
    assert TimelineRecord(OplogEntry(7, None)).encode() == ""
    assert TimelineRecord.decode("7 -1").known == OplogEntry(7, -1)
    for text in ("1", "1 2 3 4", f"{1 << 64} 1", "-1 1", f"1 {1 << 64} 1", "-1 2 1", "3 2 1", "NaN 1"):
        with pytest.raises(ValueError, match=r"number|cluster time|literal"):
            TimelineRecord.decode(text)


def test_a_record_keeps_the_forks_of_others_and_no_entry_that_one_of_them_has_lost() -> None:
    other = Fork(300, 400, True)
    lost, present = OplogEntry(350, 4), OplogEntry(500, 3)
    stored = TimelineRecord(present, (other, Fork(1, 2, True)))
    merged = TimelineRecord(OplogEntry(450, 4), (Fork(7, 9, True), other)).merged_with(stored)
    assert merged == TimelineRecord(OplogEntry(450, 4), (Fork(1, 2, True), Fork(7, 9, True), other))
    assert TimelineRecord(lost).merged_with(stored).known == present, "a server that has not met the restore yet"
    many = TimelineRecord(None, tuple(Fork(2 * n, 2 * n + 1, True) for n in range(FORKS_MAX)))
    assert many.merged_with(TimelineRecord(None, (Fork(900, 901, True),))).forks == (
        *many.forks[1:],
        Fork(900, 901, True),
    )
