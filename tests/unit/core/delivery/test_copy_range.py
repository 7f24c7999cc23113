"""Which two positions are a range within a copy."""

import bson
import pytest
from bson import Int64, ObjectId

from feedmux_server.core.delivery.copy_range import has_documents, is_behind, is_of_one_step, range_end
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from tests.sim.events import BEGIN, event_token
from tests.tables import over


def at(time: int, up_to: bytes = b"", documents: int = 0, generation: int = 1) -> ResumeToken:
    return ResumeToken.high_water_mark(BEGIN + time).while_copying(Copied(up_to, documents, generation=generation))


def outside(time: int) -> ResumeToken:
    return ResumeToken.high_water_mark(BEGIN + time)


@over(
    ("place", "start", "documents", "expected"),
    [
        (at(1), at(1, b"a", 1), True, True),
        (at(1, b"a", 1), at(2, b"a", 1), True, False),  # documents as of another time
        (at(1, b"a", 1), at(2, b"a", 1), False, True),
        (at(1), at(2, b"a", 1), False, False),  # changes to more documents
        (at(1, b"a", 1), at(2, b"", 1), False, True),  # to the invalidate, whether it is shown or not
        (at(1), outside(2), True, False),
        (outside(1), outside(2), False, True),
    ],
)
def test_what_belongs_to_the_step(place: ResumeToken, start: ResumeToken, documents: bool, expected: bool) -> None:
    assert is_of_one_step(place, start, documents=documents) is expected


def test_the_end_of_a_range() -> None:
    assert range_end(at(1), at(2, b"a", 1)) == at(2, b"a", 1)
    assert range_end(outside(1), outside(2)) == outside(2)
    again, end = at(1, bson.encode({"_id": 2}), 9), at(1, bson.encode({"_id": 5}), 5)
    assert range_end(again, end) == end, "it has more documents than it had at first"
    rest = range_end(at(1), outside(2))
    assert rest.is_after(at(2, b"z", 1000)), "all the rest of the documents"
    assert event_token(BEGIN + 2).is_after(rest)


@over(
    ("after", "until"),
    [
        (outside(1), at(2, b"a", 1)),
        (at(1), at(2, b"a", 1, generation=2)),
        (at(1), event_token(BEGIN + 2)),
        (at(1, bson.encode({"_id": 5}), 2), at(1, bson.encode({"_id": Int64(-2)}), 1)),
        (at(1, bson.encode({"_id": "bx"}).replace(b"x", b"\xff"), 2), at(1, bson.encode({"_id": "abc"}), 1)),
        (at(1, bson.encode({"_id": ObjectId(b"\xff" * 12)}), 2), at(1, bson.encode({"_id": ObjectId(b"\0" * 12)}), 1)),
    ],
)
def test_what_is_no_range(after: ResumeToken, until: ResumeToken) -> None:
    with pytest.raises(FeedmuxError):
        range_end(after, until)


def test_a_range_of_changes_alone() -> None:
    assert not has_documents(at(1, b"a", 1), event_token(BEGIN + 2).while_copying(Copied(b"a", 1)))
    assert not has_documents(at(1, b"a", 1), at(2, b"", 1)), "an invalidate that is not shown ends it"
    assert has_documents(at(1, b"a", 1), at(2, b"b", 2))
    assert has_documents(at(1, b"a", 1), outside(2))


def test_a_position_that_does_not_cover_all_documents() -> None:
    behind = outside(1).while_copying(Copied(b"a", 2, is_behind=True))
    assert [is_behind(each) for each in (behind, at(1, b"a", 1), outside(1))] == [True, False, False]
