"""What is stored of an event that is set aside."""

from typing import Any

import bson

from feedmux_server.core.events.dead_letter import KEY_BYTES_MAX, DeadLetter, dead_letter

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
