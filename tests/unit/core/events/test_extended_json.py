import base64
import datetime
import json
import math
import tracemalloc
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Binary, Code, DatetimeMS, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.codec_options import CodecOptions
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.extended_json import pipeline_as_json, render_events
from feedmux_server.core.feeds.pipeline_policy import pipeline_from_extended_json
from tests.tables import over

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(allow_nan=False) | st.just(math.nan),  # JSON has a single NaN, without a sign
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.binary(max_size=8),
    st.uuids().map(Binary.from_uuid),
    st.binary(min_size=16, max_size=16).map(lambda content: Binary(content, 3)),
    st.binary(max_size=8).map(lambda content: Binary(content, 128)),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.integers(-(2**63), 2**63 - 1).map(DatetimeMS),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    st.sampled_from([MinKey(), MaxKey(), Regex("a.b", "i"), Code("f"), Decimal128("1.10"), Decimal128("NaN")]),
)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0$"), max_size=6)
DOCUMENTS = st.dictionaries(
    NAMES,
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
BOUNDS = [
    each for limit in (1e-5, 1e-4, 1e15, 1e16, 1e17) for each in (math.nextafter(limit, 0), limit, limit * (1 + 1e-15))
]
"""Where the notation of a number changes, in Python or in orjson."""
MILLISECONDS = CodecOptions[dict[str, Any]](datetime_conversion=bson.DatetimeConversion.DATETIME_MS)


def render(*events: Any, canonical: bool = False) -> list[str]:
    data, offsets = b"", array("L")
    for event in events:
        offsets.append(len(data))
        data += event if isinstance(event, bytes) else bson.encode(event)
    return [text.decode() for text in render_events(data, offsets, canonical)]


@settings(max_examples=50)
@given(DOCUMENTS)
@example({"n": [Int64(5), Int64(2**40), 5, 5.0, 1e300, math.inf], "d": DatetimeMS(2**62)})
@example({"$regex": Regex("a", "im"), "$in": [Regex("b")], "c": Code("f", {"x": Int64(1)})})
def test_what_is_shown_of_a_pipeline_can_be_typed(stage: dict[str, Any]) -> None:
    pipeline = bson.encode({"pipeline": [{"$match": stage}]})
    assert pipeline_from_extended_json(pipeline_as_json(pipeline)) == pipeline


def test_a_pipeline_is_shown_with_blanks() -> None:
    stages = bson.encode({"pipeline": [{"$match": {"a": 1, "b": [1, Int64(2)]}}, {}]})
    assert pipeline_as_json(stages) == '[{"$match": {"a": 1, "b": [1, {"$numberLong":"2"}]}}, {}]'


@settings(max_examples=50)
@given(DOCUMENTS, st.booleans())
@example({"n": [0.0, -0.0, *BOUNDS, *(-each for each in BOUNDS)]}, False)
@example({"t": "".join(map(chr, range(0x250)))}, False)
def test_the_text_is_the_one_of_json_util(document: dict[str, Any], canonical: bool) -> None:
    options = json_util.CANONICAL_JSON_OPTIONS if canonical else json_util.RELAXED_JSON_OPTIONS
    ordered = bson.decode(bson.encode(document), MILLISECONDS)
    expected = json_util.dumps(ordered, json_options=options, ensure_ascii=False, separators=(",", ":"))
    assert render(document, canonical=canonical) == [expected]


SAMPLES = json.loads((Path(__file__).parents[4] / "clients/testdata/extended_json.json").read_text())
EXACT: list[tuple[bytes, str]] = [
    *((base64.b64decode(each["bson"]), each["canonical"]) for each in SAMPLES if each["name"].startswith("types with")),
    # Indexes of an array, options of a regular expression that are not in order, and a name that stands twice.
    (b"\x10\0\0\0\x04a\0\x08\0\0\0\x0a7\0\0\0", '{"a":[null]}'),
    (b"\x0e\0\0\0\x0ba\0^a\0xi\0\0", '{"a":{"$regularExpression":{"pattern":"^a","options":"ix"}}}'),
    (bson.encode({"a": "x", "b": "y"}).replace(b"b\0", b"a\0"), '{"a":"x","a":"y"}'),
]
"""Types without a class in pymongo, and names with `$`: these texts are relaxed and canonical."""


def test_every_type_and_every_order_has_its_text() -> None:
    for document, expected in EXACT:
        assert render(document, canonical=True) == render(document) == [expected]


def test_the_texts_that_all_clients_are_tested_with_are_the_servers() -> None:
    for sample in SAMPLES:
        assert render(base64.b64decode(sample["bson"]), canonical=True) == [sample["canonical"]], sample["name"]
    assert len(SAMPLES) > 100


@given(st.sampled_from([each for each, _ in EXACT]), st.data())
def test_bytes_that_are_no_bson_are_refused_and_nothing_else_happens(document: bytes, data: st.DataObject) -> None:
    damaged = bytearray(document)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(4, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(4, len(damaged)))]
    with suppress(FeedmuxError):
        (rendered,) = render(bytes(damaged))
        json.loads(rendered)


def test_events_come_one_by_one() -> None:
    assert render({"a": 1}, {"b": "é"}, {}) == ['{"a":1}', '{"b":"é"}', "{}"]
    assert render({"a": 1}, canonical=True) == ['{"a":{"$numberInt":"1"}}']
    data = bson.encode({"a": 1})
    assert list(render_events(data, [0, len(data)], False)) == [b'{"a":1}']
    assert not list(render_events(b"", [], False))


def retained_after_long_names(write: Callable[[bytes], object]) -> int:
    """The bytes that are retained after `write` has met documents with 3 MB of names."""
    documents = [bson.encode({f"{number}{'x' * 100_000}": 1}) for number in range(30)]
    write(documents[0])
    tracemalloc.start()
    try:
        for document in documents:
            write(document)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


@over("canonical", [True, False])
def test_long_names_are_not_kept(canonical: bool) -> None:
    assert retained_after_long_names(lambda data: list(render_events(data, [0], canonical))) < 1_000_000


def test_dates() -> None:
    at = datetime.datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.UTC)
    assert render({"d": at}) == ['{"d":{"$date":"2024-01-02T03:04:05.678Z"}}']
    assert render({"d": at}, canonical=True) == ['{"d":{"$date":{"$numberLong":"1704164645678"}}}']
    for far_ms in (2**63 - 1, -(2**63), -1, 253402300800000):
        expected = f'{{"d":{{"$date":{{"$numberLong":"{far_ms}"}}}}}}'
        assert render({"d": DatetimeMS(far_ms)}) == [expected]
        assert render({"d": DatetimeMS(far_ms)}, canonical=True) == [expected]


def test_broken_text_does_not_end_the_feed() -> None:
    assert render(bson.encode({"a": "xyz"}).replace(b"y", b"\xff")) == ['{"a":"x�z"}']


def test_broken_names_do_not_either() -> None:
    assert render(bson.encode({"xyz": 1}).replace(b"y", b"\xff")) == ['{"x�z":1}']


def test_old_binaries_without_their_second_length_do_not_either() -> None:
    for content, text in ((b"", ""), (b"xy", "eHk="), (b"\x09\0\0\0x", "CQAAAHg="), (b"\1\0\0\0x", "eA==")):
        document = bson.encode({"a": Binary(content, 128)}).replace(b"\x80", b"\2")
        assert render(document) == [f'{{"a":{{"$binary":{{"base64":"{text}","subType":"02"}}}}}}']


def test_what_is_not_bson() -> None:
    for data in (b"\x05\0\0\0\1", b"\x05\0", bson.encode({"a": "b"})[:-1]):
        with pytest.raises(FeedmuxError) as caught:
            render(data)
        assert caught.value.reason is ErrorReason.BSON_INVALID


def test_the_deepest_document_that_mongodb_takes() -> None:
    document: dict[str, Any] = {}
    for _ in range(180):
        document = {"a": document}
    assert render(document)[0].count("{") == 181
