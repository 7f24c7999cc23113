"""Derives from resume tokens the time of an event, and a key that sorts as the events do.

Whole tokens sort as the events do only within one token version, and a feed may contain two. The leading fields sort so
in every version: cluster time, index within the transaction, fromInvalidate. Together with the fragment number of a
split event, they order all changes of a document. An unknown layout raises, because with a wrong order an old change
would win.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from feedmux_spark.rows import bson_walk as bson
from feedmux_spark.rows.bson_walk import Ints, Mask, Values
from feedmux_spark.rows.errors import InvalidEvents

SORT_KEY_BYTES: Final = 17
"""Cluster time (4 seconds, 4 increment), transaction index (4), fromInvalidate (1), fragment (4), all big endian. Of a
copied document: the cluster time as of which it was read, and the highest value after it, because the document has all
changes of that time."""

_HEAD_BYTES: Final = 32
_HEAD_TEXT: Final = f"V{2 * _HEAD_BYTES}"
_EVENT: Final = 128
_HIGH_WATER_MARK: Final = 0
"""Of the documents of a copy: the time after the one as of which they were read."""
_VERSIONS: Final = (1, 2)
_TIMESTAMP: Final = 0x82
_ZERO: Final = 0x29
_NUMBER_BASE: Final = 0x2A
_NUMBER_BYTES_MAX: Final = 5
_FALSE: Final = 0x6E
_TRUE: Final = 0x6F
_NIBBLES: Final = np.full(256, 16, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789ABCDEF", np.uint8)] = np.arange(16)
_NIBBLES[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16)


def cluster_times_and_sort_keys(tokens: Values, fragments: Values) -> tuple[Ints, Ints, NDArray[np.uint8]]:
    """Seconds, increments, and a row of SORT_KEY_BYTES for each event, from `_id` and `splitEvent.fragment`.

    Raises InvalidEvents if a token is missing or has an unknown layout.
    """
    data = bson.find(tokens, ["_data"])["_data"]
    _require((data.kind == bson.STRING).all(), "an event has no resume token")
    buffer, count = tokens.buffer, len(tokens)
    nibbles = _NIBBLES[buffer.at(data.start + 4, _HEAD_TEXT).view(np.uint8).reshape(count, 2 * _HEAD_BYTES)]
    head = (nibbles[:, 0::2] << 4 | nibbles[:, 1::2]).astype(np.uint8)
    _require((head[:, 0] == _TIMESTAMP).all(), "a resume token does not begin with a cluster time")
    at: Ints = np.full(count, 9, np.int64)
    version, at = _number(head, at)
    kind, at = _number(head, at)
    transaction_index, at = _number(head, at)
    from_invalidate = head[np.arange(count), at]
    known = (
        np.isin(version, _VERSIONS)
        & ((kind == _EVENT) | (kind == _HIGH_WATER_MARK))
        & (transaction_index < 1 << 32)
        & ((from_invalidate == _FALSE) | (from_invalidate == _TRUE))
        # Hexadecimal as far as it was read, and not beyond the text.
        & (nibbles[:, :20].max(axis=1, initial=0) < 16)
        & (at < (data.end - data.start - 5) // 2)
    )
    _require(known.all(), "a resume token has a layout that this version does not know")
    keys = np.zeros((count, SORT_KEY_BYTES), np.uint8)
    keys[:, 0:8] = head[:, 1:9]
    keys[:, 8:12] = _big_endian(transaction_index)
    keys[:, 12] = from_invalidate - _FALSE
    rows = np.flatnonzero(fragments.kind == bson.INT32)
    if rows.size:
        keys[rows, 13:17] = _big_endian(buffer.at(fragments.start[rows], "<i4").astype(np.int64))
    documents = np.flatnonzero(kind == _HIGH_WATER_MARK)
    if documents.size:
        marks = np.ascontiguousarray(keys[documents, 0:8]).view(">u8")
        keys[documents, 0:8] = (marks - 1).astype(">u8").view(np.uint8).reshape(-1, 8)
        keys[documents, 8:] = 0xFF
    times = np.ascontiguousarray(keys[:, 0:8]).view(">u4").astype(np.int64)
    return times[:, 0], times[:, 1], keys


def _number(head: NDArray[np.uint8], at: Ints) -> tuple[Ints, Ints]:
    """Reads a whole number of a KeyString; returns it and the offset after it."""
    rows = np.arange(len(head))
    kind = head[rows, at]
    size = np.where(kind == _ZERO, 0, kind.astype(np.int64) - _NUMBER_BASE)
    known: Mask = (kind == _ZERO) | ((size > 0) & (size <= _NUMBER_BYTES_MAX))
    _require(known.all(), "a resume token has a layout that this version does not know")
    value: Ints = np.zeros(len(head), np.int64)
    for index in range(1, int(size.max(initial=0)) + 1):
        more = size >= index
        value = np.where(more, value << 8 | head[rows, at + index], value)
    _require(not (value & 1).any(), "a number in a resume token is not a whole number")
    return value >> 1, at + 1 + size


def _big_endian(numbers: Ints) -> NDArray[np.uint8]:
    return np.asarray(numbers.astype(">u4").view(np.uint8).reshape(-1, 4))


def _require(holds: object, message: str) -> None:
    if not holds:
        raise InvalidEvents(message)
