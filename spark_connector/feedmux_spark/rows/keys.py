"""Writes the keys of documents as BSON that is equal where the keys are equal for MongoDB.

A replacement may change an `_id` of 1 to 1.0, as a driver without types for numbers does, and a symbol to a string: the
later changes of the document have the new one. So each number is written in the smallest type that holds it, and a
symbol as a string, at every depth. Neighbours: `bson_walk` finds the values, `maker` asks for the column.
"""

from decimal import Decimal
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from bson.decimal128 import Decimal128

from feedmux_spark.rows import bson_walk as bson
from feedmux_spark.rows.bson_walk import Values

_REWRITTEN: Final = (bson.INT64, bson.DOUBLE, bson.DECIMAL128, bson.SYMBOL, bson.DOCUMENT, bson.ARRAY)
"""What may have to be written in another way, or holds something that may."""
_DOUBLE: Final = Struct("<d")
_NOT_A_NUMBER: Final = _DOUBLE.pack(float("nan"))
_INT64_DIGITS: Final = 19
_DECIMAL_DIGITS: Final = 34


def with_equal_bytes(keys: Values, column: pa.Array) -> pa.Array:
    """`column`, the BSON of `keys`, with equal bytes for equal keys."""
    found = bson.items(keys)
    owners = np.repeat(np.arange(len(keys)), found.counts)
    rows = np.unique(owners[np.isin(found.values.kind, _REWRITTEN)])
    if not rows.size:
        return column
    replaced = np.zeros(len(keys), np.bool_)
    replaced[rows] = True
    written = [_in_one_way(keys.buffer.raw, start) for start in keys.start[rows].tolist()]
    return pc.replace_with_mask(column, pa.array(replaced), pa.array(written, column.type))


def _in_one_way(raw: bytes, at: int) -> bytes:
    """The document or array at `at`."""
    parts: list[bytes] = []
    for kind, key, key_end, start, end in bson.elements(raw, at + 4):
        name, value = raw[key : key_end + 1], raw[start:end]
        written = kind
        if kind in (bson.DOCUMENT, bson.ARRAY):
            value = _in_one_way(raw, start)
        elif kind == bson.SYMBOL:
            written = bson.STRING
        elif kind == bson.INT64:
            written, value = _whole(int.from_bytes(value, "little", signed=True))
        elif kind == bson.DOUBLE:
            written, value = _number(Decimal(*_DOUBLE.unpack(value)))
        elif kind == bson.DECIMAL128:
            number = Decimal128.from_bid(value).to_decimal()
            # MongoDB takes a coefficient that is too large, and reads it as zero.
            written, value = _number(number if len(number.as_tuple().digits) <= _DECIMAL_DIGITS else Decimal())
        parts += (bytes((written,)), name, value)
    content = b"".join(parts)
    return (len(content) + 5).to_bytes(4, "little") + content + b"\0"


def _number(number: Decimal) -> tuple[int, bytes]:
    if not number.is_finite():
        return bson.DOUBLE, _NOT_A_NUMBER if number.is_nan() else _DOUBLE.pack(float(number))
    if not number:
        return _whole(0)
    if number.adjusted() < _INT64_DIGITS and number == (whole := int(number)) and -(2**63) <= whole < 2**63:
        return _whole(whole)
    double = float(number)
    if Decimal(double) == number:
        return bson.DOUBLE, _DOUBLE.pack(double)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).rstrip("0")
    shortest = Decimal((sign, tuple(map(int, text)), exponent + len(digits) - len(text)))
    return bson.DECIMAL128, Decimal128(shortest).bid


def _whole(number: int) -> tuple[int, bytes]:
    if -(2**31) <= number < 2**31:
        return bson.INT32, number.to_bytes(4, "little", signed=True)
    return bson.INT64, number.to_bytes(8, "little", signed=True)
