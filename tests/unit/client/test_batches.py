"""Batches over their bytes: nothing is decoded twice, and one bad event spoils no other."""

import pickle

import bson
import pytest
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS

from feedmux.batches import Batch, BsonBatch, JsonBatch
from feedmux.errors import ProtocolError
from feedmux.positions import FeedPosition
from tests.tables import over
from tests.unit.client.scripted_server import event, token

AT = FeedPosition(b"P", bson.encode(token(9)))
FAR = bson.encode({"_id": token(2), "at": DatetimeMS(1 << 60)})


def of(*documents: bytes, count: int | None = None) -> BsonBatch:
    view = memoryview(b"".join(documents))
    return BsonBatch(view, len(documents) if count is None else count, AT, 0, CodecOptions())


def texts(*documents: str) -> JsonBatch:
    return JsonBatch(documents, AT, 0, CodecOptions())


@over(
    "made",
    [of(*map(event, range(200))), texts(*(json_util.dumps(bson.decode(event(n))) for n in range(200)))],
)
def test_events_in_any_order_are_those_of_the_whole(made: Batch) -> None:
    events = list(made)
    in_order = [each.document for each in events]
    assert events[199].document is in_order[199]
    assert [events[index].document["n"] for index in (150, 0, 199, 64, 63)] == [150, 0, 199, 64, 63]
    assert [each["n"] for each in made.documents] == [each["n"] for each in in_order] == list(range(200))
    assert made.documents is made.documents


def test_a_part_has_its_own_bytes_and_the_numbers_of_the_whole() -> None:
    whole = of(event(1), event(2), event(3))
    whole.first_sequence = 11
    front, rest = whole.part(0, 2), whole.part(2, 3)
    assert (front.first_sequence, front.last_sequence, front.position) == (11, 12, b"")
    assert (rest.first_sequence, rest.last_sequence, rest.position) == (13, 13, b"P")
    assert [each.raw for each in front] + [each.raw for each in rest] == [event(1), event(2), event(3)]
    assert front.size_bytes + rest.size_bytes == whole.size_bytes
    twin = whole.twin()
    assert (twin.first_sequence, len(twin), twin.position) == (11, 3, b"P")


@over("made", [of(event(1)), texts("{}")])
def test_an_event_says_what_to_pickle_instead(made: Batch) -> None:
    [one] = made
    with pytest.raises(TypeError, match=r"pass on event\.document or event\.raw"):
        pickle.dumps(one)


def test_an_event_that_cannot_be_decoded_fails_alone() -> None:
    options: CodecOptions[dict[str, object]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME)
    made = BsonBatch(memoryview(event(1) + FAR + event(3)), 3, AT, 0, options)
    one, two, three = made
    assert one.document["n"] == 1
    with pytest.raises(bson.errors.InvalidBSON):
        _ = two.document
    assert three.document["n"] == 3
    assert two.resume_token == token(2)
    with pytest.raises(bson.errors.InvalidBSON):
        _ = made.documents


@over("count", [1, 3])
def test_a_wrong_count_is_found_when_decoding_and_when_splitting(count: int) -> None:
    with pytest.raises(ProtocolError):
        _ = of(event(1), event(2), count=count).documents
    with pytest.raises(ProtocolError):
        of(event(1), event(2), count=count).check()


@over("data", [b"", b"\xff\0\0\0\0", b"\x06\0\0\0\0"])
def test_lengths_that_do_not_add_up_are_found_at_once(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="do not add up"):
        of(data, count=1)


def test_the_id_need_not_be_first_nor_a_token() -> None:
    moved, without = bson.encode({"n": 1, "_id": token(3)}), bson.encode({"n": 1, "_id": 3})
    one, two = of(moved, without)
    assert (one.resume_token, two.resume_token) == (token(3), None)
    with pytest.raises(ProtocolError, match="not extended JSON"):
        _ = next(texts("{").events()).resume_token


def test_json_counts_the_bytes_of_utf_8() -> None:
    made = texts('{"_id": {"_data": "82"}, "n": {"$numberLong": "5"}}', '{"_id": {"_data": "83"}, "s": "ü"}')
    assert made.documents[0]["n"] == 5
    assert made.size_bytes == sum(len(each.raw) for each in made)
    assert [each.resume_token for each in made] == [{"_data": "82"}, {"_data": "83"}]
    assert made.part(1, 2).raw_event(0) == made.texts[1].encode()
