"""What is stored of an event that is set aside."""

from dataclasses import replace
from typing import Any

import bson

from feedmux_server.core.events.dead_letter import KEY_BYTES_MAX, DeadLetter, dead_letter, place_of
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.letters import Check
from tests.sim.events import BEGIN, event_token
from tests.tables import over

NOW_S = 1_800_000_000


def letter(now_s: float = NOW_S, stream_key: bytes = b"", **fields: Any) -> DeadLetter:
    event = bson.encode({"_id": {"_data": "8200"}, **fields})
    return dead_letter(
        event,
        tenant="a",
        subscription="s",
        stream_key=stream_key,
        attempts=1,
        reasons=(),
        member="",
        cluster_time=NOW_S << 32,
        now_s=now_s,
    )


def test_the_key_is_the_document_key_unless_it_is_long() -> None:
    assert letter(documentKey={"_id": 2, "a.b": 1}).key == bson.encode({"_id": 2, "a.b": 1})
    assert letter().key == b""
    assert letter(documentKey=5).key == b""
    many: dict[str, Any] = {str(n): None for n in range(254)}
    assert letter(**many, documentKey={"_id": 1}).key == bson.encode({"_id": 1})
    assert letter(**many, more=None, documentKey={"_id": 1}).key == b""
    assert letter(documentKey={"_id": "x" * KEY_BYTES_MAX}).key == b""


def test_a_clock_that_was_set_back_makes_no_letter_that_expires_at_once() -> None:
    assert letter(now_s=0.0).failed_ms == letter().failed_ms == NOW_S * 1000


def test_an_event_is_one_letter_for_each_feed() -> None:
    assert letter(documentKey={"_id": 1}).id == letter().id
    assert letter(stream_key=b"other grants").id != letter().id


@over("fragment", [None, 0])
def test_events_of_one_time_and_index_are_in_the_order_of_their_tokens(fragment: int | None) -> None:
    """As the delete and the insert of a document that an update of its shard key moves to another shard."""
    tokens = [event_token(BEGIN, key=key, fragment=fragment) for key in (1, 2, 3)]
    longer = ResumeToken.from_key_string(
        bytes.fromhex(str(bson.decode(tokens[2].raw)["_data"])[:-2] + "78" * 999 + "04")
    )
    places = [place_of(each) for each in (*tokens, longer, event_token(BEGIN, 1, key=0), event_token(BEGIN + 1, key=0))]
    assert places == sorted(places)
    assert len({*places}) == 6
    assert len(places[3]) < 300


def test_the_place_of_an_earlier_version_is_that_of_all_events_of_its_time_and_index() -> None:
    place = place_of(event_token(BEGIN, key=1))
    former, first = place[:35], replace(letter(), place=place, attempts=0)
    later = replace(first, place=place_of(event_token(BEGIN, 1, key=1)))
    assert former < place
    assert [Check(b"", b"", (former, b"")).came_later(each) for each in (first, later)] == [False, True]
