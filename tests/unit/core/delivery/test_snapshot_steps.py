"""When documents may be read, and as of which time."""

import bson

from feedmux_server.core.delivery.snapshot_steps import LAG_MAX_S, RETRIES_AT_ONCE, SnapshotSteps
from feedmux_server.core.positions.position import COPIED_BYTES_MAX
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from tests.sim.events import BEGIN, event_token

NOTHING = Copied()


def mark(time: int) -> ResumeToken:
    return ResumeToken.high_water_mark(BEGIN + time)


def steps(place: ResumeToken | None = None) -> SnapshotSteps:
    return SnapshotSteps((place or mark(1)).while_copying(NOTHING))


def next_mark(
    which: SnapshotSteps, read_to: ResumeToken, complete: int = 0, known: int = BEGIN, *, has_more: bool = False
) -> ResumeToken | None:
    return which.mark_after(read_to, complete, known, has_more=has_more)


def test_documents_are_as_of_the_time_before_what_was_read() -> None:
    assert next_mark(steps(), mark(1)) == mark(1)
    assert next_mark(steps(), event_token(BEGIN + 5)) == mark(5), "other events of its time may follow"
    assert next_mark(steps(), mark(5), BEGIN + 5) == mark(6), "MongoDB had nothing more at that time"


def test_no_step_goes_back() -> None:
    one = steps()
    one.begin_documents(mark(9))
    assert next_mark(one, mark(3)) == mark(9)


def test_after_a_change_in_the_middle_of_its_time_that_time_is_read_to_its_end() -> None:
    one = steps(event_token(BEGIN + 5))
    assert next_mark(one, event_token(BEGIN + 5, key=1)) is None
    assert next_mark(one, event_token(BEGIN + 6)) == mark(6)


def test_all_documents_at_one_mark_have_one_version_of_tokens() -> None:
    """In another version they would neither be before nor after those that came already."""
    one = steps(mark(5))
    one.begin_documents(mark(5))
    one.gave_documents(mark(5).while_copying(Copied(b"x", 3)), b"x")
    assert next_mark(one, event_token(BEGIN + 5, fragment=0)) == mark(5)
    later = next_mark(one, event_token(BEGIN + 6, fragment=0))
    assert later is not None
    assert later.version == 2


def test_changes_come_first_while_there_are_many() -> None:
    assert next_mark(steps(), mark(5), has_more=True) is None
    late = BEGIN + (LAG_MAX_S + 1 << 32)
    assert next_mark(steps(), mark(5), known=late) is None
    assert next_mark(steps(), mark(5), BEGIN + 5, known=late) is None


def test_a_time_that_must_be_reached() -> None:
    one = steps()
    one.not_before = BEGIN + 5
    assert next_mark(one, mark(5)) is None
    assert next_mark(one, mark(5), BEGIN + 5) == next_mark(one, mark(6)) == mark(6)


def test_how_far_it_is() -> None:
    one = steps()
    one.begin_documents(mark(4))
    assert (one.time, one.place.copied) == (BEGIN + 3, NOTHING)
    small, large = bson.encode({"_id": 1}), bson.encode({"_id": 2})
    end = one.place.while_copying(Copied(small, 2))
    one.gave_documents(end, large)
    assert (one.stored, one.copied) == (Copied(small, 2), Copied(large, 2))
    one.gave_changes(event_token(BEGIN + 7))
    assert (one.place, one.place.copied) == (event_token(BEGIN + 7), Copied(small, 2))
    assert one.copied == Copied(large, 2)
    assert event_token(BEGIN + 8, invalidate=True).while_copying(Copied(small, 2)).copied == Copied(documents=2)
    one.invalidated()
    assert (one.place, one.stored) == (event_token(BEGIN + 7), Copied(documents=2))


def test_it_is_tried_again_at_once_a_few_times_between_documents() -> None:
    one = steps()
    assert [one.may_retry_at_once() for _ in range(RETRIES_AT_ONCE + 1)] == [True] * RETRIES_AT_ONCE + [False]
    one.gave_documents(one.place, b"")
    assert one.may_retry_at_once()
    one.retries = RETRIES_AT_ONCE
    one.passed(b"", may_be_known=False)
    assert one.may_retry_at_once(), "documents that a filter drops are no failure"


def test_a_large_id_that_was_passed_is_in_no_position() -> None:
    one, large = steps(), bson.encode({"_id": "x" * COPIED_BYTES_MAX})
    one.passed(large, may_be_known=True)
    assert (one.copied.up_to, one.stored.up_to) == (large, b"")
