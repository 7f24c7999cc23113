"""Converts BSON values to Arrow columns, a whole column at a time.

A value is taken only if the column can hold it exactly (FLOAT rounds values in its range); any other value is a
mismatch, and is never changed to another value. `docs/rows.md` has the table. Neighbours: `bson_walk` finds the values,
`maker` asks for columns.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from feedmux_spark.rows import bson_walk as bson
from feedmux_spark.rows.bson_walk import Buffer, Ints, Mask, Values
from feedmux_spark.rows.decimals import decimals
from feedmux_spark.rows.errors import TypeMismatch

Built = tuple[pa.Array, Mask]
"""A column, and the rows in which a value was taken."""

_EXACT_IN_DOUBLE: Final = 1 << 53
_DAY_MS: Final = 86_400_000
_UUID_BYTES: Final = 16
_UUID_SUBTYPE: Final = 4
_OLD_BINARY_SUBTYPE: Final = 2
_PLAIN_SUBTYPE: Final = 0
_HEX: Final = np.frombuffer(bytes(range(256)).hex().encode(), "<u2")

TAKES: Final[Mapping[str, str]] = MappingProxyType({
    "STRING": "string, symbol, javascript; objectId as 24 hexadecimal digits; binary of subtype 4 as a UUID's text",
    "BINARY": "binary of every subtype, of the old one (2) without its inner length; objectId as 12 bytes; document and"
    " array as their BSON",
    "BOOLEAN": "bool",
    "TINYINT, SMALLINT, INT, BIGINT": "int, long and double that are whole and in range",
    "DOUBLE": "double; int; long within ±2^53",
    "FLOAT": "the same within ±3.4028235e38, rounded to the nearest; infinities",
    "DECIMAL(p, s)": "decimal, int and long that need no more than p digits, s of them after the decimal point",
    "TIMESTAMP, TIMESTAMP_NTZ": "date within ±292,277 years of 1970; timestamp, by its seconds",
    "DATE": "date and timestamp: the day in UTC",
    "STRUCT": "document; fields by name, the first of several of one name",
    "ARRAY": "array",
    "MAP<STRING, …>": "document; all fields in order",
})  # fmt: skip
"""What a column of a Spark type takes, in the names of MongoDB's `$type`. `docs/rows.md` shows it."""

KEY_TAKES: Final[Mapping[str, str]] = MappingProxyType({
    "STRING": "string and symbol; objectId and UUID, as long as no other document has its text",
    "BINARY": "binary of subtype 0",
    "FLOAT": "what it holds exactly",
    "TIMESTAMP, TIMESTAMP_NTZ": "date",
    "DATE": "date at midnight in UTC",
    "STRUCT": "document with all fields of the type, in their order, and no others",
})  # fmt: skip
"""What a column of these types takes in `document_key`, if not all that it takes elsewhere: values from which MongoDB
cannot have another `_id` of the same content in the column. A number in another type, and a symbol with a string's
text, are the same `_id` for MongoDB."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do with a value that its column cannot hold."""

    fail: bool
    notes: list[tuple[Ints, str]] | None = None
    """Where mismatches are collected, as places in the buffer and what is wrong there, instead of being raised. The
    columns are then of no use in the rows of these places."""
    of_key: bool = False
    """The columns identify a document: they take only what `KEY_TAKES` says."""

    def refuse(self, places: Ints, message: str, place: int | None) -> None:
        """Notes a mismatch, or raises TypeMismatch."""
        if self.notes is None:
            raise TypeMismatch(message, place)
        self.notes.append((places, message))


def column(values: Values, field: pa.Field, path: str, policy: Policy, parents: Values | None = None) -> pa.Array:
    """The values as a column of exactly `field.type`. Raises TypeMismatch.

    `parents` are the documents of which the values are fields; a column that is not nullable needs a value in each.
    """
    array, taken = _builder(field.type)(values, field.type, path, policy)
    if taken.all():
        return array
    if policy.fail:
        kind = values.kind
        refused = ~taken & (kind != bson.MISSING) & (kind != bson.NULL)
        if not policy.of_key:  # there, undefined and null are two values
            refused &= kind != bson.UNDEFINED
        while refused.any():
            row = int(np.argmax(refused))
            alike = refused & (kind == kind[row])
            name = bson.NAMES[int(kind[row])]
            wanted = _spark_name(field.type)
            message = f"{path}: a BSON {name} that a column of type {wanted} cannot hold"
            for types, takes in KEY_TAKES.items() if policy.of_key else ():
                if wanted.partition("<")[0] in types.split(", "):
                    message += f" in a key, where it takes {takes}"
            policy.refuse(values.start[alike], message, int(values.start[row]))
            refused &= ~alike
    if not field.nullable:
        owners = values if parents is None else parents
        empty = ~taken & (owners.kind == bson.DOCUMENT) if parents is not None else ~taken
        if empty.any():
            message = f"{path} is declared NOT NULL, and an event has no fitting value for it"
            if (owners.kind[empty] == bson.MISSING).any():
                raise TypeMismatch(message)  # a column of the row itself: no null can stand for it
            policy.refuse(owners.start[empty], message, None)
    return array


def spans(buffer: Buffer, start: Ints, end: Ints, taken: Mask, arrow_type: pa.DataType) -> pa.Array:
    """Pieces of the buffer, in increasing order, as strings or binaries; null where not `taken`."""
    count = len(start)
    if not count:
        return pa.array([], arrow_type)
    # Offsets that go over pieces and the gaps between them in turn; then every other one is taken.
    offsets = np.empty(2 * count, np.int32)
    ends = np.maximum.accumulate(np.where(taken, end, 0))
    offsets[1::2] = ends
    offsets[0::2] = np.where(taken, start, ends)
    parts = pa.Array.from_buffers(arrow_type, 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer.raw)])
    return parts.take(pa.array(np.arange(0, 2 * count, 2), mask=None if taken.all() else ~taken))


def fixed_binary(rows: NDArray[np.uint8], arrow_type: pa.DataType) -> pa.Array:
    """A matrix of bytes as binaries (or strings) of one length, without a copy."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    data = np.ascontiguousarray(rows)
    return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _spark_name(arrow_type: pa.DataType) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(arrow_type).simpleString().upper()


def _builder(arrow_type: pa.DataType) -> Callable[[Values, Any, str, Policy], Built]:
    for fits, build in _BUILDERS:
        if fits(arrow_type):
            return build
    raise AssertionError(f"a schema with {arrow_type} was let through")


def _mask(taken: Mask) -> NDArray[np.bool_] | None:
    return None if taken.all() else ~taken


def _validity(taken: Mask) -> pa.Buffer | None:
    return None if taken.all() else pa.py_buffer(np.packbits(taken, bitorder="little"))


def _of_kind(values: Values, kind: int) -> tuple[Ints, Ints]:
    rows = np.flatnonzero(values.kind == kind)
    return rows, values.start[rows]


def _integers(values: Values, arrow_type: Any, _path: str, _policy: Policy) -> Built:
    numbers = np.zeros(len(values), np.int64)
    taken = np.zeros(len(values), np.bool_)
    for kind, dtype in ((bson.INT32, "<i4"), (bson.INT64, "<i8")):
        rows, places = _of_kind(values, kind)
        numbers[rows] = values.buffer.at(places, dtype)
        taken[rows] = True
    rows, places = _of_kind(values, bson.DOUBLE)
    if rows.size:
        doubles = values.buffer.at(places, "<f8")
        whole = (doubles >= -(2.0**63)) & (doubles < 2.0**63) & (np.floor(doubles) == doubles)
        numbers[rows[whole]] = doubles[whole].astype(np.int64)
        taken[rows[whole]] = True
    dtype = arrow_type.to_pandas_dtype()
    if dtype is not np.int64:
        limits = np.iinfo(dtype)
        taken &= (numbers >= limits.min) & (numbers <= limits.max)
        numbers = numbers.astype(dtype)
    return pa.array(numbers, arrow_type, mask=_mask(taken)), taken


def _doubles(values: Values, arrow_type: Any, _path: str, policy: Policy) -> Built:
    numbers = np.zeros(len(values), np.float64)
    taken = (values.kind == bson.DOUBLE) | (values.kind == bson.INT32)
    for kind, dtype in ((bson.DOUBLE, "<f8"), (bson.INT32, "<i4")):
        rows, places = _of_kind(values, kind)
        numbers[rows] = values.buffer.at(places, dtype)
    rows, places = _of_kind(values, bson.INT64)
    if rows.size:
        longs = values.buffer.at(places, "<i8")
        numbers[rows] = longs
        taken[rows] = (longs <= _EXACT_IN_DOUBLE) & (longs >= -_EXACT_IN_DOUBLE)
    exact, finite = numbers, np.isfinite(numbers)
    with np.errstate(over="ignore"):
        numbers = numbers.astype(arrow_type.to_pandas_dtype())
    taken &= ~(finite & np.isinf(numbers))
    if policy.of_key:
        taken &= (numbers == exact) | np.isnan(exact)
    return pa.array(numbers, arrow_type, mask=_mask(taken), from_pandas=False), taken


def _booleans(values: Values, arrow_type: Any, _path: str, _policy: Policy) -> Built:
    taken = values.kind == bson.BOOLEAN
    truths = values.buffer.bytes[np.where(taken, values.start, 0)] != 0
    return pa.array(truths, arrow_type, mask=_mask(taken)), taken


def _microseconds(values: Values) -> tuple[Ints, Mask]:
    numbers = np.zeros(len(values), np.int64)
    taken = np.zeros(len(values), np.bool_)
    rows, places = _of_kind(values, bson.DATE)
    milliseconds = values.buffer.at(places, "<i8")
    limit = np.iinfo(np.int64).max // 1000
    fits = (milliseconds <= limit) & (milliseconds >= -limit)
    numbers[rows] = np.where(fits, milliseconds, 0) * 1000
    taken[rows] = fits
    rows, places = _of_kind(values, bson.TIMESTAMP)
    numbers[rows] = values.buffer.at(places + 4, "<u4").astype(np.int64) * 1_000_000
    taken[rows] = True
    return numbers, taken


def _timestamps(values: Values, arrow_type: Any, _path: str, policy: Policy) -> Built:
    numbers, taken = _microseconds(values)
    if policy.of_key:
        taken &= values.kind != bson.TIMESTAMP
    return pa.array(numbers, mask=_mask(taken)).view(arrow_type), taken


def _dates(values: Values, arrow_type: Any, _path: str, policy: Policy) -> Built:
    numbers, taken = _microseconds(values)
    if policy.of_key:
        taken &= (values.kind != bson.TIMESTAMP) & (numbers % (_DAY_MS * 1000) == 0)
    return pa.array((numbers // (_DAY_MS * 1000)).astype(np.int32), mask=_mask(taken)).view(arrow_type), taken


def _decimals(values: Values, arrow_type: Any, _path: str, _policy: Policy) -> Built:
    words, taken = decimals(values, arrow_type.precision, arrow_type.scale)
    return pa.Array.from_buffers(arrow_type, len(values), [_validity(taken), pa.py_buffer(words)]), taken


def _strings(values: Values, arrow_type: Any, _path: str, policy: Policy) -> Built:
    kind = values.kind
    taken = (kind == bson.STRING) | (kind == bson.SYMBOL) | ((kind == bson.CODE) & (not policy.of_key))
    array = spans(values.buffer, values.start + 4, values.end - 1, taken, arrow_type)
    rows, places = _of_kind(values, bson.OBJECT_ID)
    if rows.size:
        identifiers = _HEX[_matrix(values.buffer, places, 12)].view(np.uint8)
        array = pc.coalesce(array, _scattered(fixed_binary(identifiers, arrow_type), rows, len(values)))
        taken[rows] = True
    rows, places = _of_kind(values, bson.BINARY)
    if rows.size:
        size = values.buffer.at(places, "<i4")
        uuid = (size == _UUID_BYTES) & (values.buffer.bytes[places + 4] == _UUID_SUBTYPE)
        rows, places = rows[uuid], places[uuid] + 5
        array = pc.coalesce(
            array, _scattered(fixed_binary(_uuids(values.buffer, places), arrow_type), rows, len(values))
        )
        taken[rows] = True
    return array, taken


def _matrix(buffer: Buffer, places: Ints, width: int) -> NDArray[np.uint8]:
    return np.asarray(buffer.at(places, f"V{width}").view(np.uint8).reshape(-1, width))


def _uuids(buffer: Buffer, places: Ints) -> NDArray[np.uint8]:
    digits = _HEX[_matrix(buffer, places, _UUID_BYTES)].view(np.uint8)
    text = np.full((len(places), 36), ord("-"), np.uint8)
    for target, source, length in ((0, 0, 8), (9, 8, 4), (14, 12, 4), (19, 16, 4), (24, 20, 12)):
        text[:, target : target + length] = digits[:, source : source + length]
    return text


def _scattered(array: pa.Array, rows: Ints, count: int) -> pa.Array:
    """The values of `array` at `rows` of `count`, null elsewhere."""
    places = np.zeros(count, np.int64)
    places[rows] = np.arange(len(rows))
    missing = np.ones(count, np.bool_)
    missing[rows] = False
    return array.take(pa.array(places, mask=missing))


def _binaries(values: Values, arrow_type: Any, _path: str, policy: Policy) -> Built:
    kind, start = values.kind, values.start.copy()
    taken = (kind == bson.BINARY) | (kind == bson.OBJECT_ID) | (kind == bson.DOCUMENT) | (kind == bson.ARRAY)
    rows, places = _of_kind(values, bson.BINARY)
    if rows.size:
        start[rows] += 5
        old = values.buffer.bytes[places + 4] == _OLD_BINARY_SUBTYPE
        rows, places = rows[old], places[old]
        # A second length precedes the bytes; MongoDB also stores an empty value without this length.
        size, inner = values.buffer.at(places, "<i4"), values.buffer.at(places + 5, "<i4")
        measured = (size >= 4) & (inner == size - 4)
        start[rows[measured]] += 4
        taken[rows] = measured | (size == 0)
    if policy.of_key:
        taken &= kind == bson.BINARY
        rows, places = _of_kind(values, bson.BINARY)
        taken[rows] &= values.buffer.bytes[places + 4] == _PLAIN_SUBTYPE
    return spans(values.buffer, start, values.end, taken, arrow_type), taken


def _structs(values: Values, arrow_type: Any, path: str, policy: Policy) -> Built:
    taken = values.kind == bson.DOCUMENT
    fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
    if policy.of_key and "." in path:  # of documentKey itself, the column may have the `_id` alone
        taken &= _has_fields(values.masked(taken), [field.name for field in fields])
    parents = values.masked(taken)
    found = bson.find(parents, [field.name for field in fields])
    children = [column(found[field.name], field, f"{path}.{field.name}", policy, parents) for field in fields]
    return pa.Array.from_buffers(arrow_type, len(values), [_validity(taken)], children=children), taken


def _has_fields(documents: Values, names: list[str]) -> Mask:
    """Returns which documents have exactly these fields, in this order."""
    items = bson.items(documents)
    found: Mask = items.counts == len(names)
    first = np.cumsum(items.counts) - items.counts
    for index, name in enumerate(names):
        rows = np.flatnonzero(found)
        keys = items.keys.take(first[rows] + index)
        found[rows] = keys.buffer.matches(keys.start, name.encode())
    return found


def _lists(values: Values, arrow_type: Any, path: str, policy: Policy) -> Built:
    taken = values.kind == bson.ARRAY
    items = bson.items(values.masked(taken))
    child = column(items.values, arrow_type.value_field, f"{path}[]", policy)
    return _nested(arrow_type, items.counts, child, taken), taken


def _maps(values: Values, arrow_type: Any, path: str, policy: Policy) -> Built:
    taken = values.kind == bson.DOCUMENT
    items = bson.items(values.masked(taken))
    keys = items.keys
    texts = spans(keys.buffer, keys.start, keys.end, np.ones(len(keys), np.bool_), arrow_type.key_type)
    child = column(items.values, arrow_type.item_field, f"{path}{{}}", policy)
    entries = pa.StructArray.from_arrays([texts, child], fields=[arrow_type.key_field, arrow_type.item_field])
    return _nested(arrow_type, items.counts, entries, taken), taken


def _nested(arrow_type: pa.DataType, counts: Ints, child: pa.Array, taken: Mask) -> pa.Array:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.Array.from_buffers(arrow_type, len(counts), [_validity(taken), pa.py_buffer(offsets)], children=[child])


_BUILDERS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Values, Any, str, Policy], Built]], ...]] = (
    (pt.is_integer, _integers),
    (pt.is_floating, _doubles),
    (pt.is_string, _strings),
    (pt.is_boolean, _booleans),
    (pt.is_timestamp, _timestamps),
    (pt.is_date32, _dates),
    (pt.is_decimal128, _decimals),
    (pt.is_binary, _binaries),
    (pt.is_struct, _structs),
    (pt.is_map, _maps),
    (pt.is_list, _lists),
)
