"""The order of stored positions is that of MongoDB's events, whatever the version of their tokens."""

from itertools import product

import bson

from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.stored_order import order_bytes
from tests.sim.events import BEGIN
from tests.tables import over
from tests.unit.core.positions.test_token_versions import Change

FIRST, SAME_TIME, LATER_TXN = Change(1, 0, 1, 1, "insert"), Change(1, 0, 1, 2, "insert"), Change(1, 3, 1, 1, "insert")


@over("version", [1, 2])
def test_events_of_one_time_are_ordered_as_mongodb_orders_them(version: int) -> None:
    tokens = [each.token(version) for each in (FIRST, SAME_TIME, LATER_TXN)]
    assert sorted(tokens, key=order_bytes) == tokens
    for one, other in product(tokens, repeat=2):
        assert (order_bytes(one) > order_bytes(other)) == one.is_after(other)


def test_a_session_of_a_newer_version_can_store_after_one_of_an_older() -> None:
    older = [each.token(1) for each in (FIRST, SAME_TIME, Change(1, 0, 9, 1, "update"))]
    assert all(order_bytes(FIRST.token(2)) > order_bytes(each) for each in older)


def test_a_time_comes_before_its_events_and_is_the_same_in_both_versions() -> None:
    marks = [ResumeToken.high_water_mark(BEGIN + 1, version) for version in (1, 2)]
    assert order_bytes(marks[0]) == order_bytes(marks[1])
    assert all(order_bytes(marks[0]) < order_bytes(FIRST.token(version)) for version in (1, 2))


def test_the_invalidate_event_comes_after_the_event_that_caused_it() -> None:
    cause = FIRST.token(1)
    data = bytes.fromhex(bson.decode(cause.raw)["_data"])
    invalidate = ResumeToken.from_key_string(data.replace(b"\x6e", b"\x6f", 1))
    assert invalidate.from_invalidate
    assert order_bytes(invalidate) > order_bytes(cause)
