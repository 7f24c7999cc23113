"""Which events are written by decoding them. `test_extended_json.py` compares the texts of both ways."""

import math
from typing import Any

import bson
from bson import Binary, Code, Decimal128, Int64, MaxKey, Regex, Timestamp

from feedmux.relaxed_json import text_of

SYMBOL = bson.encode({"a": "x"}).replace(b"\x02a", b"\x0ea")
UNDEFINED = b"\x08\0\0\0\x06a\0\0"
POINTER = b"\x1c\0\0\0\x0ca\0\x04\0\0\0d.c\0" + bytes(12) + b"\0"


def test_usual_values_of_every_type_are() -> None:
    values: list[Any] = [
        1, Int64(1), 1e-5, 1e16, math.nan, -math.inf, "é\x01", None, True, b"\0", Binary(b"x", 128), Regex("a", "i"),
        Code("f()"), Code("f()", {"x": Code("g()")}), Decimal128("1.10"), Timestamp(1, 2), MaxKey(), {"$oid": "x"}, [],
    ]  # fmt: skip
    assert text_of(bson.encode({"v": values}))


def test_an_event_that_decoding_changes_or_that_is_large_is_not() -> None:
    double = bson.encode({"a": 1, "b": 2}).replace(b"b\0", b"a\0")
    reordered = bson.encode({"q": {"$id": "1", "$ref": "c"}})
    broken = bson.encode({"a": "xyz"}).replace(b"y", b"\xff")
    large = bson.encode({"a": "x" * (1 << 20)})
    for event in (large, SYMBOL, UNDEFINED, POINTER, double, reordered, broken, b"\x05\0\0\0\1", b"\x05\0"):
        assert text_of(event) is None, event
