"""The events are cut out of MongoDB's reply unchanged. tests/integration/test_raw_cursor.py reads with real cursors."""

import asyncio
from types import SimpleNamespace
from typing import Any

import bson
import bson.raw_bson
import pytest

from feedmux_server.source import cursor
from feedmux_server.source.cursor import ReplyEvents, _Cursor, find_batch
from tests.tables import over

AROUND = {"ok": 1.0, "operationTime": bson.Timestamp(1, 2)}
ODD = b"\x0e\0\0\0\x02a\0\x02\0\0\0\xff\0\0"
"""A document with text that is not UTF-8, which MongoDB stores."""


def reply(events: list[Any], **more: Any) -> bytes:
    raw = [bson.raw_bson.RawBSONDocument(each) if isinstance(each, bytes) else each for each in events]
    return bson.encode(
        {**AROUND, "cursor": {"id": 7, **more, "nextBatch": raw, "postBatchResumeToken": {"_data": "82"}}}
    )


def cut(data: bytes | memoryview) -> dict[str, Any]:
    nobody: Any = None
    (found,) = _Cursor._unpack_response(nobody, SimpleNamespace(payload_document=data), 7, nobody)
    return found


def parts_of(run: ReplyEvents) -> list[bytes]:
    async def all_parts() -> list[bytes]:
        parts = [await run.copy_part()]
        while run.left:
            parts.append(await run.copy_part())
        return parts

    return asyncio.run(all_parts())


@over(
    "events",
    [
        [bson.encode({"n": 1})],
        [bson.encode({"n": number, "pad": "x" * number}) for number in range(300)],
        [bson.encode({"cursor": {"nextBatch": [1]}})],
        [ODD, bson.encode({"n": 1}), ODD],
    ],
)
def test_events_come_as_one_run_of_bytes_beside_the_rest_of_the_reply(events: list[bytes]) -> None:
    found = cut(reply(events, ns="db.c"))
    (run,) = found["cursor"].pop("nextBatch")
    assert parts_of(run) == [b"".join(events)]
    token = bson.encode({"_data": "82"})
    assert found == {**AROUND, "cursor": {"id": 7, "ns": "db.c", "postBatchResumeToken": token}}


def test_the_bytes_of_a_reply_at_the_end_of_a_buffer_are_not_copied() -> None:
    buffer = bytearray(b"\0" * 5 + reply([{"n": 1}]))
    (run,) = cut(memoryview(buffer)[5:])["cursor"]["nextBatch"]
    assert run._reply is buffer
    assert parts_of(run) == [bson.encode({"n": 1})]


def test_a_large_reply_is_copied_in_parts_and_a_large_event_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """MongoDB may return 16 MB at once, and copying it would hold the event loop for 10 ms."""
    monkeypatch.setattr(cursor, "_PART_BYTES", 1_000)
    monkeypatch.setattr(cursor, "_STEP_BYTES", 300)
    monkeypatch.setattr(cursor, "_EVENT_COST", 10)
    pauses = 0

    async def pause(_: float) -> None:
        nonlocal pauses
        pauses += 1

    monkeypatch.setattr(asyncio, "sleep", pause)
    small, large = bson.encode({"pad": "x" * 100}), bson.encode({"pad": "x" * 2_000})
    (run,) = cut(reply([*[small] * 20, large, large, small]))["cursor"]["nextBatch"]
    assert parts_of(run) == [small * 8, small * 8, small * 4, large, large, small]
    assert pauses == 2 * -(-len(large) // 300)


def test_a_reply_without_events() -> None:
    token = bson.encode({"_data": "82"})
    assert cut(reply([]))["cursor"] == {"id": 7, "nextBatch": [], "postBatchResumeToken": token}
    without = bson.encode({**AROUND, "cursor": {"nextBatch": [], "id": 7}})
    assert cut(without)["cursor"] == {"id": 7, "nextBatch": []}
    first = bson.encode({"cursor": {"postBatchResumeToken": {"_data": "82"}, "nextBatch": [{"n": 1}], "id": 7}})
    (run,) = cut(first)["cursor"].pop("nextBatch")
    assert (parts_of(run), cut(first)["cursor"]["postBatchResumeToken"]) == ([bson.encode({"n": 1})], token)


@over(
    "other",
    [
        {"ok": 0.0, "errmsg": "no", "code": 43},
        {"ok": 1.0, "cursor": {"id": 7}},
        {"ok": 1.0, "cursor": [{"nextBatch": []}]},
        {"ok": 1.0, "nextBatch": []},
    ],
)
def test_a_reply_of_another_kind_is_left_as_it_is(other: dict[str, Any]) -> None:
    assert find_batch(bson.encode(other)) is None
    assert cut(bson.encode(other)) == other
