"""Random documents in columns of random types, beside the same rules in plain Python."""

import math
from typing import Any

import bson
import numpy as np
import pyarrow as pa
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as sql

from feedmux_spark.rows import row_maker
from tests.unit.spark.events import event, stream
from tests.unit.spark.rows.reference import expected, same

MILLISECONDS = CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_MS)

NAMES = st.sampled_from(
    ["", "a", "ab", "abcdefgh", "a.b", "é", "price", "a name of more than sixteen bytes", "_id", "0"]
)
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
DOUBLES = st.floats() | st.integers(-300, 300).map(float) | st.sampled_from([2.0**63, -(2.0**63), 2.0**31, 0.5, -0.0])
DECIMALS = st.builds(
    lambda sign, digits, exponent: Decimal128(f"{sign}{digits}E{exponent}"),
    st.sampled_from(["", "-"]),
    st.integers(0, 10**34 - 1) | st.integers(0, 10**6) | st.integers(10**17, 10**19) | st.just(10**33),
    st.integers(-40, 40),
) | st.sampled_from([Decimal128("NaN"), Decimal128("-Infinity"), Decimal128("1E6000"), Decimal128("0E-6176")])
BINARIES = st.builds(Binary, st.binary(max_size=20), st.sampled_from([0, 2, 3, 5, 128])) | st.builds(
    lambda raw: Binary(raw, 4), st.binary(min_size=16, max_size=16)
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 31), (1 << 31) - 1)
    | st.integers(-200, 200)
    | LONG.map(Int64)
    | DOUBLES
    | st.text(max_size=8)
    | DECIMALS
    | BINARIES
    | st.binary(min_size=12, max_size=12).map(ObjectId)
    | st.integers(-62_000_000_000_000, 253_000_000_000_000).map(DatetimeMS)
    | st.builds(Timestamp, st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
    | st.sampled_from([Regex("a", "i"), Regex(""), Code("f()"), Code("f()", {"a": 1}), MinKey(), MaxKey()])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=8
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=7)
LEAF_TYPES = st.sampled_from([
    sql.ByteType(), sql.ShortType(), sql.IntegerType(), sql.LongType(), sql.DoubleType(), sql.BooleanType(),
    sql.StringType(), sql.BinaryType(),
    sql.TimestampType(), sql.DateType(), sql.DecimalType(10, 2), sql.DecimalType(18, 0), sql.DecimalType(38, 10),
    sql.DecimalType(20, 20),
])  # fmt: skip
TYPES: st.SearchStrategy[sql.DataType] = st.recursive(
    LEAF_TYPES,
    lambda inner: (
        st.builds(sql.ArrayType, inner)
        | st.builds(lambda value: sql.MapType(sql.StringType(), value), inner)
        | st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(
            lambda fields: sql.StructType([sql.StructField(name, each) for name, each in fields.items()])
        )
    ),
    max_leaves=4,
)
SCHEMAS = st.dictionaries(NAMES, TYPES, min_size=1, max_size=4).map(
    lambda fields: sql.StructType([sql.StructField(name, each) for name, each in fields.items()])
)


EDGES = st.sampled_from([base + off for base in (1 << 53, -(1 << 53), 1 << 31) for off in (-1, 0, 1)]).map(Int64)
INTEGERS = EDGES | st.integers(-130, 130) | st.integers(-(1 << 31), (1 << 31) - 1) | LONG.map(Int64) | DOUBLES
FITTING: dict[type[sql.DataType], st.SearchStrategy[Any]] = {
    sql.ByteType: INTEGERS, sql.ShortType: INTEGERS, sql.IntegerType: INTEGERS, sql.LongType: INTEGERS,
    sql.DoubleType: INTEGERS,
    sql.BooleanType: st.booleans(),
    sql.StringType: st.text(max_size=20) | BINARIES | LEAVES,
    sql.BinaryType: BINARIES | LEAVES,
    sql.TimestampType: LEAVES, sql.DateType: LEAVES,
    sql.DecimalType: DECIMALS | INTEGERS,
}  # fmt: skip


def fitting(data_type: sql.DataType) -> st.SearchStrategy[Any]:
    """Values that mostly fit the type, or nearly do."""
    match data_type:
        case sql.StructType():
            fields = {field.name: fitting(field.dataType) for field in data_type}
            inner: st.SearchStrategy[Any] = st.fixed_dictionaries({}, optional=fields)
            inner |= st.builds(dict, st.fixed_dictionaries(fields)) | st.builds(lambda a, b: a | b, DOCUMENTS, inner)
        case sql.ArrayType():
            inner = st.lists(fitting(data_type.elementType), max_size=4)
        case sql.MapType():
            inner = st.dictionaries(NAMES, fitting(data_type.valueType), max_size=4)
        case _:
            inner = FITTING[type(data_type)]
    return inner | inner | VALUES


CASES = SCHEMAS.flatmap(lambda schema: st.tuples(st.just(schema), st.lists(fitting(schema), min_size=1, max_size=6)))


def numbers(arrow_type: pa.DataType) -> pa.DataType:
    """The same type with numbers for times, which Python's have too narrow a range for."""
    if pa.types.is_timestamp(arrow_type):
        return pa.int64()
    if pa.types.is_date32(arrow_type):
        return pa.int32()
    if pa.types.is_struct(arrow_type):
        return pa.struct([pa.field(f.name, numbers(f.type), f.nullable) for f in arrow_type])
    if pa.types.is_map(arrow_type):
        return pa.map_(arrow_type.key_type, numbers(arrow_type.item_type))
    if pa.types.is_list(arrow_type):
        return pa.list_(pa.field("element", numbers(arrow_type.value_type)))
    return arrow_type


def as_numbers(array: pa.Array) -> list[Any]:
    target = numbers(array.type)

    def rebuilt(arrow_type: pa.DataType, wanted: pa.DataType, one: pa.Array) -> pa.Array:
        if pa.types.is_struct(wanted):
            children = [
                rebuilt(f.type, w.type, one.field(i)) for i, (f, w) in enumerate(zip(arrow_type, wanted, strict=True))
            ]
            return pa.Array.from_buffers(wanted, len(one), one.buffers()[:1], children=children)
        if pa.types.is_map(wanted):
            entries = pa.StructArray.from_arrays(
                [one.keys, rebuilt(arrow_type.item_type, wanted.item_type, one.items)],
                fields=[wanted.key_field, wanted.item_field],
            )
            return pa.Array.from_buffers(wanted, len(one), one.buffers()[:2], children=[entries])
        if pa.types.is_list(wanted):
            child = rebuilt(arrow_type.value_type, wanted.value_type, one.values)
            return pa.Array.from_buffers(wanted, len(one), one.buffers()[:2], children=[child])
        return one.view(wanted) if wanted != arrow_type else one

    found: list[Any] = rebuilt(array.type, target, array).to_pylist()
    return found


@settings(max_examples=100)
@given(CASES)
def test_every_column_holds_what_the_rules_say(case: tuple[sql.StructType, list[Any]]) -> None:
    schema, documents = case
    events = stream(*(event(number, fullDocument=each) for number, each in enumerate(documents, 1)))
    (batch,) = row_maker("typed", sql.StructType([sql.StructField("document", schema)]), "null").record_batches(events)
    batch.validate(full=True)
    decoded = [each.get("fullDocument") for each in bson.decode_all(events, MILLISECONDS)]
    wanted = [expected(each, schema) if isinstance(each, dict) else None for each in decoded]
    found = as_numbers(batch.column("document"))
    assert same(found, wanted), (found, wanted)


def test_not_a_number_stays_one() -> None:
    schema = sql.StructType([sql.StructField("document", sql.StructType([sql.StructField("a", sql.DoubleType())]))])
    (batch,) = row_maker("typed", schema, "fail").record_batches(stream(event(fullDocument={"a": math.nan})))
    assert batch.column("document").null_count == 0
    assert np.isnan(batch.column("document").field(0)[0].as_py())
