"""Events as extended JSON: the same texts as those of `json_util`."""

import json
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from feedmux_spark.rows import InvalidEvents, default_schema, row_maker
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


@pytest.mark.parametrize("document", [UNUSUAL, UNUSUAL | {"nan": float("nan"), "inf": [float("-inf")]}])
def test_json_is_the_text_of_json_util(document: dict[str, Any]) -> None:
    changed = event(1, fullDocument=document)
    (batch,) = row_maker("json", default_schema("json"), "fail").record_batches(stream(changed))
    (row,) = batch.to_pylist()
    options = CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_MS)
    decoded = bson.decode(bson.encode(changed), options)
    relaxed = json_util.dumps(
        decoded, json_options=json_util.RELAXED_JSON_OPTIONS, ensure_ascii=False, separators=(",", ":")
    )
    assert row["event"] == relaxed
    assert json.loads(row["event"])["documentKey"] == {"_id": 1}


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
