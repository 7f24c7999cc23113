"""Find values in BSON without decoding it."""

import datetime
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

from feedmux_server.core.events.bson_walk import ARRAY, DOCUMENT, STRING, find, find_text, text_at, value_end
from tests.tables import over

EVERY_TYPE: dict[str, Any] = {
    "double": 1.5,
    "text": "ns",
    "text with NUL": "text\0é",
    "document": {"ns": {"db": "wrong", "coll": "wrong"}},
    "array": ["ns", [2, {"ns": 1}]],
    "binary": Binary(b"\x02ns\x00", 128),
    "old binary": Binary(b"ab", 2),
    "id": ObjectId("65f000000000000000000001"),
    "true": True,
    "date": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "null": None,
    "regex": Regex("ns", "i"),
    "code": Code("ns"),
    "code with scope": Code("ns", {"ns": {"db": "wrong"}}),
    "int": 1,
    "timestamp": Timestamp(1, 2),
    "long": Int64(1),
    "decimal": Decimal128("1.5"),
    "least": MinKey(),
    "most": MaxKey(),
}
"""Values in which a search for `ns` must not stop."""
DEPRECATED = {0x06: b"", 0x0C: b"\2\0\0\0c\0" + b"i" * 12, 0x0E: b"\2\0\0\0s\0"}
"""Values of the types that the encoder does not write: undefined, DBPointer, symbol."""


@over("name", EVERY_TYPE)
def test_a_value_of_every_type_is_passed(name: str) -> None:
    data = b"before" + bson.encode({name: EVERY_TYPE[name], "ns": "text"}) + b"after"
    at = find(data, 6, b"ns", STRING)
    assert at is not None
    assert text_at(data, at) == b"text"
    assert find_text(data, 6, b"ns") == b"text"


@over("kind", DEPRECATED)
def test_deprecated_types_are_passed(kind: int) -> None:
    value = DEPRECATED[kind]
    assert value_end(b"before" + value + b"after", kind, 6) == 6 + len(value)


def test_the_type_must_be_the_wanted_one() -> None:
    data = bson.encode({"a": {"b": ["c"]}})
    at = find(data, 0, b"a", DOCUMENT)
    assert at is not None
    assert find(data, 0, b"a", STRING) is None
    assert find(data, at, b"b", ARRAY) is not None
    assert find(data, 0, b"b", ARRAY) is None
    assert find_text(data, 0, b"a") == b""


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(ValueError, match="no BSON type 20"):
        value_end(bytes(8), 20, 0)
