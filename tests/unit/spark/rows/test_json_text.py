"""Events as extended JSON: the same texts as those of the server."""

import base64
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedmux_spark.rows import InvalidEvents, default_schema, row_maker
from tests.unit.core.events.test_extended_json import BOUNDS, DOCUMENTS, EXACT, MILLISECONDS, render
from tests.unit.spark.events import event, stream

UNUSUAL = {
    "int": 1, "long": Int64(1 << 60), "double": 1.5, "minus zero": -0.0, "text": 'é "quoted" \u2028\x01', "none": None,
    "nested": {"list": [1, {"a": Decimal128("1.10")}], "empty": {}}, "id": ObjectId(b"abcdefghijkl"),
    "raw": b"\x00\xff", "uuid": Binary(bytes(range(16)), 4),
    "own": Binary(b"x", 128), "date": datetime(2024, 1, 2, 3, 4, 5, 678000, UTC),
    "far": DatetimeMS(1 << 60), "early": DatetimeMS(-1), "regex": Regex("a/b", "ix"), "code": Code("f()"),
    "scope": Code("f()", {"x": Code("g()")}), "ref": DBRef("c", 1, "d", note=Code("h()")),
    "min": MinKey(), "max": MaxKey(), "time": Timestamp(7, 8), "yes": True,
}  # fmt: skip


def changed(document: bytes | dict[str, Any]) -> bytes:
    """An event with a `fullDocument`."""
    raw = document if isinstance(document, bytes) else bson.encode(document)
    return stream(event(1, fullDocument=RawBSONDocument(raw)))


def shown(*events: bytes) -> list[str]:
    (batch,) = row_maker("json", default_schema("json"), "fail").record_batches(b"".join(events))
    return [row["event"] for row in batch.to_pylist()]


@settings(max_examples=100)
@given(st.lists(DOCUMENTS, min_size=1, max_size=3))
@example([{"n": [0.0, -0.0, *BOUNDS, *(-each for each in BOUNDS)]}])
@example([{"t": "".join(map(chr, range(0x250)))}])
def test_the_text_is_the_one_of_json_util_and_of_the_server(documents: list[dict[str, Any]]) -> None:
    events = [changed(each) for each in documents]
    expected = [
        json_util.dumps(
            bson.decode(each, MILLISECONDS),
            json_options=json_util.RELAXED_JSON_OPTIONS,
            ensure_ascii=False,
            separators=(",", ":"),
        )
        for each in events
    ]
    assert shown(*events) == expected
    assert render(*events) == expected


def test_every_type_has_its_text_and_no_document_is_taken_for_another() -> None:
    """DBPointer, Symbol and Undefined, which `bson` decodes as something else; `$ref` and other names of documents."""
    samples = json.loads((Path(__file__).parents[4] / "clients/testdata/extended_json.json").read_text())
    documents: list[bytes | dict[str, Any]] = [base64.b64decode(sample["bson"]) for sample in samples]
    documents += [document for document, _ in EXACT] + [UNUSUAL, UNUSUAL | {"nan": math.nan, "inf": [-math.inf]}]
    events = [changed(each) for each in documents]
    assert len(events) > 100
    assert shown(*events) == render(*events)
    for document, text in EXACT:
        assert f'"fullDocument":{text}' in shown(changed(document))[0]


def test_an_event_that_is_nested_too_deep_is_told_what_to_use() -> None:
    raw = b"\x05\0\0\0\0"
    for _ in range(3000):
        raw = (len(raw) + 8).to_bytes(4, "little") + b"\x03d\0" + raw + b"\0"
    nested = event(1, fullDocument=RawBSONDocument(raw))
    with pytest.raises(InvalidEvents, match="use schemaMode envelope"):
        row_maker("json", default_schema("json"), "fail").record_batches(stream(nested))


def test_broken_text_does_not_end_the_feed() -> None:
    raw = stream(event(1, fullDocument={"t": "abc"})).replace(b"abc", b"a\xffc")
    (batch,) = row_maker("json", default_schema("json"), "fail").record_batches(raw)
    assert json.loads(batch.to_pylist()[0]["event"])["fullDocument"] == {"t": "a\ufffdc"}
