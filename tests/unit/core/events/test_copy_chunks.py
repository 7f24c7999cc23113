"""Positions of a copy, as its chunks give them."""

import bson
import pytest
from bson import Decimal128, MaxKey, ObjectId

from feedmux_server.core.events.chunk import cut_batch
from feedmux_server.core.events.copy_chunks import ChangesChunk, DocumentsChunk, copied_id, cut_documents
from feedmux_server.core.positions.position import COPIED_BYTES_MAX
from feedmux_server.core.positions.resume_token import Copied, ResumeToken
from tests.sim.events import BEGIN, event, event_token, hex_of
from tests.tables import over

MARK = ResumeToken.high_water_mark(BEGIN + 1)
BEFORE = Copied(bson.encode({"_id": -1}), 10)
START = MARK.while_copying(BEFORE)


def document_event(key: object, padding: int = 0) -> bytes:
    return bson.encode({"_id": {"_data": hex_of(MARK), "snapshot": {"_id": key}}, "pad": b"x" * padding})


def documents(*keys: object, padding: int = 0, bytes_max: int = 10**9) -> list[DocumentsChunk]:
    data = b"".join(document_event(key, padding) for key in keys)
    return cut_documents(data, START, BEFORE, 1.5, bytes_max=bytes_max)


def copied(place: ResumeToken | None) -> tuple[object, int]:
    assert place is not None
    assert place.copied is not None
    return bson.decode(place.copied.up_to)["_id"], place.copied.documents


def test_each_document_has_a_position_of_its_own_at_one_time() -> None:
    chunks = documents(1, "b", {"c": 1}, padding=100, bytes_max=480)
    assert [chunk.count for chunk in chunks] == [2, 1]
    places = [chunk.token(index) for chunk in chunks for index in range(chunk.count)]
    assert [copied(place) for place in places] == [(1, 11), ("b", 12), ({"c": 1}, 13)]
    assert all(later.is_after(earlier) for earlier, later in zip([START, *places], places, strict=False))
    assert event_token(BEGIN + 1).is_after(places[-1]), "the first change of that time comes after all documents"
    assert event_token(BEGIN).reaches(places[0]) is False
    assert chunks[0].end == chunks[1].start == places[1]
    assert all(chunk.are_documents for chunk in chunks)


def test_a_position_has_no_large_id() -> None:
    fits = "x" * (COPIED_BYTES_MAX - len(bson.encode({"_id": ""})))
    [chunk] = documents(1, fits, f"{fits}y")
    assert copied(chunk.token(1)) == (fits, 12)
    assert copied(chunk.end) == (-1, 13)
    assert chunk.end.copied is not None
    assert chunk.end.copied.is_behind, "a range must not end here"
    assert bson.decode(chunk.last_id()) == {"_id": f"{fits}y"}, "the reader continues after it all the same"


def test_a_token_that_is_large_ends_a_delivery() -> None:
    assert [chunk.ends_delivery for chunk in documents(1, "x" * 10_000, 2)] == [True, False]


def test_changes_have_the_place_of_the_copy() -> None:
    tokens = [event_token(BEGIN + n, key=n) for n in range(3)]
    data = b"".join(event(n, token).data for n, token in enumerate(tokens))
    newest = ResumeToken.high_water_mark(BEGIN + 9)
    [chunk] = cut_batch(data, ResumeToken.high_water_mark(BEGIN), newest, 1.5, bytes_max=10**9)
    part = ChangesChunk.of(chunk, BEFORE, tokens[1])
    assert part is not None
    assert (part.count, part.are_documents) == (2, False)
    places = (part.start, part.token(0), part.ack_place(0), part.end)
    assert [place.copied for place in places if place is not None] == [BEFORE] * 4
    assert part.end == tokens[1]
    assert ChangesChunk.of(chunk, BEFORE, ResumeToken.high_water_mark(BEGIN)) is None
    for until, end in ((None, newest), (newest, newest), (ResumeToken.high_water_mark(BEGIN + 3), tokens[2])):
        part = ChangesChunk.of(chunk, BEFORE, until)
        assert part is not None
        assert (part.count, part.end) == (3, end.while_copying(BEFORE)), "no place is after what was asked for"


@over("key", [1, "b", {"a": 1}, ObjectId(), Decimal128("1.5"), MaxKey(), None])
def test_in_a_copy_of_several_collections_the_namespace_follows_the_id(key: object) -> None:
    """It is no part of the position's `_id`, which goes back to MongoDB."""
    snapshot = {"_id": key, "ns": {"db": "shop", "coll": "orders"}}
    assert copied_id(bson.encode({"_data": hex_of(MARK), "snapshot": snapshot})) == bson.encode({"_id": key})


def test_what_is_not_a_document() -> None:
    with pytest.raises(ValueError, match="not the event of a document"):
        copied_id(bson.encode({"_data": "00"}))
