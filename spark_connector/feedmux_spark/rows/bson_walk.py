"""Finds fields and array elements in many BSON documents at once, with numpy instead of a loop over documents.

One step takes the next element of every document that has one left: its kind, its key, and where its value lies. Events
of one feed are shaped alike, so a step's keys are mostly the same; those that differ take the general way. Documents
with far more elements than their neighbours, for which a step would process only a handful of rows, are walked one by
one. Nothing is decoded or copied here: the result is offsets in the buffer, from which `convert` makes columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from feedmux_spark.rows.errors import InvalidEvents

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]

MISSING: Final = 0
DOUBLE: Final = 1
STRING: Final = 2
DOCUMENT: Final = 3
ARRAY: Final = 4
BINARY: Final = 5
UNDEFINED: Final = 6
OBJECT_ID: Final = 7
BOOLEAN: Final = 8
DATE: Final = 9
NULL: Final = 10
REGEX: Final = 11
DB_POINTER: Final = 12
CODE: Final = 13
SYMBOL: Final = 14
CODE_WITH_SCOPE: Final = 15
INT32: Final = 16
TIMESTAMP: Final = 17
INT64: Final = 18
DECIMAL128: Final = 19
MAX_KEY: Final = 127
MIN_KEY: Final = 255

NAMES: Final = {
    DOUBLE: "double", STRING: "string", DOCUMENT: "document", ARRAY: "array", BINARY: "binary", UNDEFINED: "undefined",
    OBJECT_ID: "objectId", BOOLEAN: "bool", DATE: "date", NULL: "null", REGEX: "regex", DB_POINTER: "dbPointer",
    CODE: "javascript", SYMBOL: "symbol", CODE_WITH_SCOPE: "javascriptWithScope", INT32: "int", TIMESTAMP: "timestamp",
    INT64: "long", DECIMAL128: "decimal", MAX_KEY: "maxKey", MIN_KEY: "minKey",
}  # fmt: skip
"""The names that MongoDB's `$type` uses."""

_UNKNOWN: Final = -1
_FIXED_BYTES: Final = np.full(256, _UNKNOWN, np.int64)
_COUNTED: Final = np.zeros(256, np.bool_)
_LEAST_COUNT: Final = np.zeros(256, np.int64)
for _kind, _bytes in {
    DOUBLE: 8, UNDEFINED: 0, OBJECT_ID: 12, BOOLEAN: 1, DATE: 8, NULL: 0, INT32: 4, TIMESTAMP: 8, INT64: 8,
    DECIMAL128: 16, MAX_KEY: 0, MIN_KEY: 0, REGEX: 0,
}.items():  # fmt: skip
    _FIXED_BYTES[_kind] = _bytes
# An int32 in front says how much follows: this much besides what it says, and the least it may say.
for _kind, (_bytes, _least) in {
    STRING: (4, 1), DOCUMENT: (0, 5), ARRAY: (0, 5), BINARY: (5, 0), DB_POINTER: (16, 1), CODE: (4, 1), SYMBOL: (4, 1),
    CODE_WITH_SCOPE: (0, 14),
}.items():  # fmt: skip
    _FIXED_BYTES[_kind] = _bytes
    _COUNTED[_kind] = True
    _LEAST_COUNT[_kind] = _least

_SIZES: Final = list(zip(_FIXED_BYTES.tolist(), _COUNTED.tolist(), _LEAST_COUNT.tolist(), strict=True))
"""The same for plain Python, which takes longer to read an array."""

_ONES: Final = np.uint64(0x0101010101010101)
_HIGHS: Final = np.uint64(0x8080808080808080)
_PADDING_BYTES: Final = 64
_GUESSES: Final = 4
_FEW_ROWS: Final = 4
_MANY_STEPS: Final = 64


class Buffer:
    """Received bytes, readable at any offset as numbers of several widths."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.size = len(raw)
        # Reads of a token's first 64 bytes may begin anywhere.
        padded = np.zeros(self.size + _PADDING_BYTES, np.uint8)
        padded[: self.size] = np.frombuffer(raw, np.uint8)
        self.bytes: Bytes = padded

    def at(self, places: Ints, dtype: str) -> NDArray[Any]:
        """The values of `dtype` at `places`, which need no alignment. Raises IndexError outside of the buffer."""
        width = np.dtype(dtype).itemsize
        count = len(self.bytes) - width + 1
        return np.ndarray((max(count, 0),), dtype, self.bytes, strides=(1,))[places]

    def matches(self, places: Ints, text: bytes) -> Mask:
        """Returns at which of `places` the NUL-terminated `text` is."""
        last = len(self.bytes) - len(text) - 1
        if places.size and places.max() > last:
            found = np.zeros(len(places), np.bool_)
            inside = places <= last
            if inside.any():
                found[inside] = self.matches(places[inside], text)
            return found
        if text:
            # Comparing as S ignores NULs at the end, so equal means: the text, then a NUL.
            return np.asarray(self.at(places, f"S{len(text) + 1}") == text)
        return np.asarray(self.bytes[places] == 0)


@dataclass(frozen=True, slots=True)
class Values:
    """One BSON value, or none, for each row. Offsets of existing values are in increasing order."""

    buffer: Buffer
    kind: Bytes
    """BSON's type, or MISSING."""
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, rows: Ints | Mask) -> "Values":
        return Values(self.buffer, self.kind[rows], self.start[rows], self.end[rows])

    def masked(self, keep: Mask) -> "Values":
        """The same with MISSING where `keep` is not."""
        return Values(self.buffer, np.where(keep, self.kind, np.uint8(MISSING)), self.start, self.end)


@dataclass(frozen=True, slots=True)
class Items:
    """All elements of the documents or arrays of some rows, row after row."""

    counts: Ints
    """Elements of each row."""
    values: Values
    keys: Values
    """As strings without a length: `start` to `end` is the text."""


def split(raw: bytes) -> Ints:
    """Returns the start offset of each document, and the end. Raises InvalidEvents."""
    places = [0]
    at, end = 0, len(raw)
    while at < end:
        size = int.from_bytes(raw[at : at + 4], "little", signed=True)
        at += size
        if size < 5 or at > end:
            raise InvalidEvents("the lengths of the received documents do not add up")
        places.append(at)
    return np.array(places, np.int64)


def find(documents: Values, names: Sequence[str]) -> dict[str, Values]:
    """The fields of these names, the first one of each name; MISSING where a row is no document or lacks it."""
    count = len(documents)
    rows = np.flatnonzero((documents.kind == DOCUMENT) | (documents.kind == ARRAY))
    columns = {
        name: (np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64))
        for name in dict.fromkeys(names)
    }
    encoded = {name.encode(): name for name in columns}
    left = len(rows) * len(columns)
    for step in _steps(documents.buffer, rows, documents.start[rows]):
        for name, chosen in step.named(encoded):
            kinds, starts, ends = columns[name]
            row = step.rows[chosen]
            # A name may occur twice in a document, also in the single step of a document that is walked alone.
            row, firsts = np.unique(row, return_index=True) if step.alone else (row, slice(None))
            new = kinds[row] == MISSING
            row = row[new]
            kinds[row] = step.kinds[chosen][firsts][new]
            starts[row] = step.starts[chosen][firsts][new]
            ends[row] = step.ends[chosen][firsts][new]
            left -= len(row)
        if not left:
            break
    return {name: Values(documents.buffer, *found) for name, found in columns.items()}


def items(documents: Values) -> Items:
    """The elements of every row that is a document or an array, in order."""
    count = len(documents)
    rows = np.flatnonzero((documents.kind == DOCUMENT) | (documents.kind == ARRAY))
    steps = list(_steps(documents.buffer, rows, documents.start[rows]))
    none: Ints = np.zeros(0, np.int64)
    row = np.concatenate([none, *(step.rows for step in steps)])
    order = np.argsort(row, kind="stable")
    kind = np.concatenate([none.astype(np.uint8), *(step.kinds for step in steps)])[order]
    start, end, key, key_end = (
        np.concatenate([none, *(getattr(step, name) for step in steps)])[order]
        for name in ("starts", "ends", "keys", "key_ends")
    )
    buffer = documents.buffer
    return Items(
        np.bincount(row, minlength=count).astype(np.int64),
        Values(buffer, kind, start, end),
        Values(buffer, np.full(len(order), STRING, np.uint8), key, key_end),
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """Elements of several documents, at most one of each unless `alone`."""

    buffer: Buffer
    rows: Ints
    kinds: Bytes
    keys: Ints
    key_ends: Ints
    starts: Ints
    ends: Ints
    key: bytes | None = None
    """The one key of all."""
    alone: bool = False

    def named(self, names: dict[bytes, str]) -> Iterator[tuple[str, Any]]:
        """The wanted names that occur, each with its elements."""
        if self.key is not None:
            if self.key in names:
                yield names[self.key], slice(None)
            return
        lengths = self.key_ends - self.keys
        for encoded, name in names.items():
            candidates = np.flatnonzero(lengths == len(encoded))
            if candidates.size:
                chosen = candidates[self.buffer.matches(self.keys[candidates], encoded)]
                if chosen.size:
                    yield name, chosen


def _steps(buffer: Buffer, rows: Ints, documents: Ints) -> Iterator[_Step]:
    at = documents + 4
    number = 0
    while rows.size:
        number += 1
        if number > _MANY_STEPS and rows.size < _FEW_ROWS:
            for row, place in zip(rows.tolist(), at.tolist(), strict=True):
                step = _alone(buffer, row, place)
                if step.rows.size:
                    yield step
            return
        try:
            kinds = buffer.bytes[at]
            if not kinds.all():
                more = kinds != 0
                rows, at, kinds = rows[more], at[more], kinds[more]
                if not rows.size:
                    return
            keys = at + 1
            key_ends, key = _key_ends(buffer, keys)
            starts = key_ends + 1
            ends = starts + _value_bytes(buffer, kinds, starts)
        except (IndexError, ValueError):
            raise InvalidEvents("a document is cut short") from None
        if ends.max() >= buffer.size:
            raise InvalidEvents("a value has an impossible length")
        yield _Step(buffer, rows, kinds, keys, key_ends, starts, ends, key)
        at = ends


def _key_ends(buffer: Buffer, keys: Ints) -> tuple[Ints, bytes | None]:
    """Returns the offsets of the NULs after the keys, and the key if it is the same for all."""
    ends = np.zeros(len(keys), np.int64)
    rows = np.arange(len(keys))
    for guess in range(_GUESSES):
        places = keys[rows]
        text = buffer.raw[places[0] : buffer.raw.index(b"\0", places[0])]
        same = buffer.matches(places, text)
        if not guess and same.all():
            return keys + len(text), text
        ends[rows[same]] = places[same] + len(text)
        rows = rows[~same]
        if not rows.size:
            return ends, None
    ends[rows] = _ends_of_text(buffer, keys[rows])
    return ends, None


def _ends_of_text(buffer: Buffer, places: Ints) -> Ints:
    """Where the next NULs are: the general way, eight bytes at a time."""
    ends = places.copy()
    rows = np.arange(len(places))
    while rows.size:
        word = buffer.at(ends[rows], "<u8")
        zero = (word - _ONES) & ~word & _HIGHS  # its lowest bit is in the first zero byte
        found = zero != 0
        lowest = zero[found] & (~zero[found] + np.uint64(1))
        ends[rows[found]] += np.log2(lowest.astype(np.float64)).astype(np.int64) >> 3
        rows = rows[~found]
        ends[rows] += 8
    return ends


def _value_bytes(buffer: Buffer, kinds: Bytes, starts: Ints) -> Ints:
    first = kinds[0]
    if (kinds == first).all() and first != REGEX:
        fixed = _FIXED_BYTES[first]
        if fixed == _UNKNOWN:
            raise InvalidEvents(f"a value has the unknown BSON type {first}")
        if not _COUNTED[first]:
            return np.full(len(kinds), fixed, np.int64)
        return _counts(buffer, kinds, starts) + int(fixed)
    sizes = _FIXED_BYTES[kinds]
    if (sizes == _UNKNOWN).any():
        raise InvalidEvents(f"a value has the unknown BSON type {kinds[sizes == _UNKNOWN][0]}")
    counted = _COUNTED[kinds]
    sizes[counted] += _counts(buffer, kinds[counted], starts[counted])
    regex = kinds == REGEX
    if regex.any():
        options = _ends_of_text(buffer, starts[regex]) + 1
        sizes[regex] = _ends_of_text(buffer, options) + 1 - starts[regex]
    return sizes


def _counts(buffer: Buffer, kinds: Bytes, starts: Ints) -> Ints:
    counts: Ints = buffer.at(starts, "<i4").astype(np.int64)
    if (counts < _LEAST_COUNT[kinds]).any():
        raise InvalidEvents("a value has an impossible length")
    return counts


def _alone(buffer: Buffer, row: int, at: int) -> _Step:
    """All further elements of one document, in plain Python."""
    table = np.array(list(elements(buffer.raw, at)), np.int64).reshape(-1, 5)
    kinds, rows = table[:, 0].astype(np.uint8), np.full(len(table), row, np.int64)
    return _Step(buffer, rows, kinds, table[:, 1], table[:, 2], table[:, 3], table[:, 4], alone=True)


def elements(raw: bytes, at: int) -> Iterator[tuple[int, int, int, int, int]]:
    """The elements of one document from `at` on, in plain Python: the kind, where the key begins and ends, and where
    the value begins and ends. Raises InvalidEvents."""
    while kind := raw[at]:
        key_end = raw.find(b"\0", at + 1)
        start = key_end + 1
        size, is_counted, least = _SIZES[kind]
        if key_end < 0 or size == _UNKNOWN:
            raise InvalidEvents(f"a value has the unknown BSON type {kind}")
        if kind == REGEX:
            size = raw.find(b"\0", raw.find(b"\0", start) + 1) + 1 - start
        elif is_counted:
            count = int.from_bytes(raw[start : start + 4], "little", signed=True)
            size = size + count if count >= least else _UNKNOWN
        if size < 0 or start + size >= len(raw):
            raise InvalidEvents("a value has an impossible length")
        yield kind, at + 1, key_end, start, start + size
        at = start + size
