"""What columns hold, value by value in plain Python: the rules of `docs/rows.md` written down a second time."""

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import bson
from bson import Binary, Code, Decimal128, Int64, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from pyspark.sql import types as sql

BITS = {sql.ByteType: 8, sql.ShortType: 16, sql.IntegerType: 32, sql.LongType: 64}


class DoesNotFit(Exception):
    pass


def expected(value: Any, data_type: sql.DataType) -> Any:
    """The value in the column; None for null. Raises DoesNotFit."""
    if value is None:
        return None
    match data_type:
        case sql.StructType():
            if not isinstance(value, Mapping):
                raise DoesNotFit
            return {field.name: _or_null(value.get(field.name), field.dataType) for field in data_type}
        case sql.MapType():
            if not isinstance(value, Mapping):
                raise DoesNotFit
            return [(key, _or_null(item, data_type.valueType)) for key, item in value.items()]
        case sql.ArrayType():
            if not isinstance(value, list):
                raise DoesNotFit
            return [_or_null(item, data_type.elementType) for item in value]
    found = _leaf(value, data_type)
    if found is None:
        raise DoesNotFit
    return found


def _or_null(value: Any, data_type: sql.DataType) -> Any:
    try:
        return expected(value, data_type)
    except DoesNotFit:
        return None


def _leaf(value: Any, data_type: sql.DataType) -> Any:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    match data_type:
        case sql.ByteType() | sql.ShortType() | sql.IntegerType() | sql.LongType():
            half = 1 << BITS[type(data_type)] - 1
            whole = is_int or (isinstance(value, float) and value.is_integer())
            return int(value) if whole and -half <= value < half else None
        case sql.DoubleType():
            exact = isinstance(value, float) or (is_int and (not isinstance(value, Int64) or abs(value) <= 1 << 53))
            return float(value) if exact else None
        case sql.BooleanType():
            return value if isinstance(value, bool) else None
        case sql.DecimalType():
            return _decimal(value, data_type) if is_int or isinstance(value, Decimal128) else None
        case sql.StringType():
            return _text(value)
        case sql.BinaryType():
            return _binary(value)
        case sql.TimestampType() | sql.DateType():
            seconds = value.time * 1000 if isinstance(value, Timestamp) else None
            milliseconds = int(value) if isinstance(value, DatetimeMS) else seconds
            if milliseconds is None:
                return None
            return milliseconds * 1000 if isinstance(data_type, sql.TimestampType) else milliseconds // 86_400_000
    raise AssertionError(data_type)


def _decimal(value: Any, data_type: sql.DecimalType) -> Decimal | None:
    number = value.to_decimal() if isinstance(value, Decimal128) else Decimal(value)
    if not number.is_finite():
        return None
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    coefficient = int("".join(map(str, digits)))
    shift = exponent + data_type.scale
    if coefficient and not -100 < shift < 100:
        return None
    units, rest = (coefficient * 10**shift, 0) if shift >= 0 else divmod(coefficient, 10 ** min(-shift, 100))
    if rest or units >= 10**data_type.precision:
        return None
    return Decimal((sign if units else 0, tuple(map(int, str(units))), -data_type.scale))


def _text(value: Any) -> str | None:
    if isinstance(value, Code):
        return str(value) if value.scope is None else None
    if isinstance(value, str):
        return value
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, Binary) and value.subtype == 4 and len(value) == 16:
        return str(value.as_uuid())
    return None


def _binary(value: Any) -> bytes | None:
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, ObjectId):
        return value.binary
    if isinstance(value, Mapping | list):
        # Within another, since of a document at the top the encoder moves `_id` to the front.
        return bson.encode({"": value})[6:-1]
    return None


def same(one: Any, other: Any) -> bool:
    """Equal, NaN too."""
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other and type(one) is type(other))
