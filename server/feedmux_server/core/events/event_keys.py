"""The key of an event in a group: its collection and the `_id` of its document, as bytes of BSON.

Events of one key are delivered in order. MongoDB writes the fields of an event in one order, so a straight walk finds
the key in 1 us; an event that a pipeline has rearranged takes a search.

All events of a document have one key. So values that are equal for MongoDB are written in one way: a replacement may
change an `_id` of 1 to 1.0, as a driver without types for numbers does, and a symbol to a string. And of a sharded
collection, the shard key is no part of it, which an update, and resharding, may change.
"""

from decimal import Decimal
from hashlib import blake2b
from math import ldexp
from struct import Struct
from typing import Final

from feedmux_server.core.events.bson_walk import (
    ARRAY,
    DECIMAL,
    DOCUMENT,
    DOUBLE,
    FIXED_BYTES,
    INT32,
    INT64,
    OBJECT_ID,
    STRING,
    SYMBOL,
    length_at,
    value_end,
)
from feedmux_server.core.events.chunk import FIELDS_SEARCHED, Rendition, leading_id_at

KEY_BYTES_MAX: Final = 128
"""Of a longer key only a digest is kept: a document's `_id` can have megabytes."""

_OPERATION_TYPE: Final = b"\x02operationType\x00"
_CLUSTER_TIME: Final = b"\x11clusterTime\x00"
_CLUSTER_TIME_BYTES: Final = len(_CLUSTER_TIME) + 8
_COLLECTION_UUID: Final = b"\x05collectionUUID\x00\x10\x00\x00\x00"
_COLLECTION_UUID_BYTES: Final = len(_COLLECTION_UUID) + 17
_WALL_TIME: Final = b"\x09wallTime\x00"
_WALL_TIME_BYTES: Final = len(_WALL_TIME) + 8
_FULL_DOCUMENT: Final = b"\x03fullDocument\x00"
_NS: Final = b"\x03ns\x00"
_DOCUMENT_KEY: Final = b"\x03documentKey\x00"
_TYPE_BYTES: Final = len(_OPERATION_TYPE)
_TYPE_AND_LENGTH_BYTES: Final = _TYPE_BYTES + 4
_FULL_DOCUMENT_BYTES: Final = len(_FULL_DOCUMENT)
_NS_BYTES: Final = len(_NS)
_KEY_BYTES: Final = len(_DOCUMENT_KEY)

_NO_FIELD: Final = b"\xff"
"""The beginning of no field."""
_FRAME_BYTES: Final = 10
"""What a document with one `_id` has in addition to its value."""
_AS_IT_IS: Final = {kind: _FRAME_BYTES + FIXED_BYTES[kind] for kind in (OBJECT_ID, INT32)}
"""The bytes of a `documentKey` that is the key as it is: it has an `_id` of this type, and nothing else."""
_ID: Final = b"_id\x00"
_VALUE: Final = 9
"""Where the value of the first field of a document begins, if the field is `_id`."""
_NUMBERS: Final = frozenset((DOUBLE, INT64, DECIMAL))
"""The types of numbers of which there may be an equal one in a smaller type."""
_INT32_MAX: Final = 1 << 31
_INT64_MAX: Final = 1 << 63
_NOT_A_NUMBER: Final = float("nan")
_INFINITY: Final = float("inf")
_COEFFICIENT_BITS: Final = 113
_COEFFICIENT_MASK: Final = (1 << _COEFFICIENT_BITS) - 1
_COEFFICIENT_MAX: Final = 10**34 - 1
"""A decimal with a larger coefficient is 0."""
_EXPONENT_BIAS: Final = 6176
_SPECIAL: Final = 0b11110
"""The five bits after the sign of infinity; one more is NaN."""
_FIVES: Final = tuple(5**n for n in range(49))
"""Larger powers of 5 divide no coefficient."""
_WHOLE_DOUBLE_ZEROS_MAX: Final = 22
"""10^23 has more than 53 bits beside its powers of 2, so no double has it, nor a multiple of it by an integer that is
no multiple of 10."""
_MORE_OF_DECIMAL: Final = 2
_double: Final = Struct("<d")
_length_bytes: Final = Struct("<i").pack


class FieldsRead:
    """How many fields `keys_of` has read of events whose key takes a search, or is a document: a microsecond each. A
    decimal takes as long as three."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def keys_of(rendition: Rendition, first: int, stop: int, fields_read: FieldsRead) -> list[bytes | None]:
    """The keys of events `first` to `stop - 1`. None for an event without a `documentKey` that is a document: it
    concerns a whole collection or database, or the pipeline has changed it, or put it too far back.

    The key of an event depends on this event only: a new host, which reads the events in other portions, recognizes by
    its key what was settled.
    """
    data, offsets = rendition.data, rendition.offsets
    keys: list[bytes | None] = []
    append, length, starts, as_it_is = keys.append, length_at, data.startswith, _AS_IT_IS.get
    # Most events are alike: what has the bytes of the event before is skipped at once.
    head = ns = _NO_FIELD
    head_bytes = ns_bytes = 0
    for index in range(first, stop):
        at = leading_id_at(data, offsets[index])
        if at:
            at += length(data, at)[0]
            if starts(head, at):
                at += head_bytes
            elif starts(_OPERATION_TYPE, at):
                begin = at
                at += _TYPE_AND_LENGTH_BYTES + length(data, at + _TYPE_BYTES)[0]
                if starts(_CLUSTER_TIME, at):
                    head = data[begin : at + len(_CLUSTER_TIME)]
                    at += _CLUSTER_TIME_BYTES
                    head_bytes = at - begin
            if starts(_COLLECTION_UUID, at):  # in expanded events
                at += _COLLECTION_UUID_BYTES
            if starts(_WALL_TIME, at):
                at += _WALL_TIME_BYTES
            if starts(_FULL_DOCUMENT, at):
                at += _FULL_DOCUMENT_BYTES
                at += length(data, at)[0]
            begin = at + _NS_BYTES
            if starts(ns, at):
                at += ns_bytes
            elif starts(_NS, at) and starts(_DOCUMENT_KEY, begin + length(data, begin)[0]):
                at = begin + length(data, begin)[0] + _KEY_BYTES
                ns = data[begin - _NS_BYTES : at]
                ns_bytes = len(ns)
            else:
                append(_searched(data, offsets[index], fields_read))
                continue
            size = length(data, at)[0]
            end = at + size
            if size == as_it_is(data[at + 4]) and end - begin <= KEY_BYTES_MAX:
                append(data[begin:end])
            else:
                append(_key(data[begin:at], data, at, fields_read))
            continue
        append(_searched(data, offsets[index], fields_read))
    return keys


def _searched(data: bytes, at: int, fields_read: FieldsRead) -> bytes | None:
    """The same key, from fields in any order. A pipeline can put the fields of a document before those of its event,
    in each event of a large batch, so this loop does little for a field."""
    end = at + length_at(data, at)[0] - 1
    at += 4
    key, ns = 0, b""
    fields_left, size_of, zero_after = FIELDS_SEARCHED, FIXED_BYTES.get, data.index
    while at < end and not (key and ns):
        if not fields_left:
            fields_read.count += FIELDS_SEARCHED
            return None  # without its collection, the key would be another one
        fields_left -= 1
        kind, begin = data[at], at + 1
        at = zero_after(0, begin) + 1
        size = size_of(kind)
        if size is not None:
            at += size
            continue
        if kind == DOCUMENT:
            name = data[begin : at - 1]
            if name == b"documentKey":
                key = key or at
            elif name == b"ns":
                ns = ns or data[at : at + length_at(data, at)[0]]
        at = value_end(data, kind, at)
    fields_read.count += FIELDS_SEARCHED - fields_left
    return _key(ns + _DOCUMENT_KEY, data, key, fields_read) if key else None


def _key(before: bytes, data: bytes, at: int, fields_read: FieldsRead) -> bytes:
    """The key for the `documentKey` at `at`: by its `_id`, or all of it if a pipeline has left none."""
    end = at + length_at(data, at)[0]
    found, kind = data[at:end], data[at + 4]
    position, fields_left = at + 4, FIELDS_SEARCHED
    if data.startswith(_ID, at + 5) and value_end(data, kind, at + _VALUE) == end - 1:  # an `_id` and nothing else
        if kind in _NUMBERS:
            kind, number = _number(data, kind, at + _VALUE)
            found = b"".join((_length_bytes(_FRAME_BYTES + len(number)), bytes((kind,)), _ID, number, b"\x00"))
        position = position if kind in (DOCUMENT, ARRAY, SYMBOL) else end
    while position < end - 1 and fields_left:
        value = data.index(0, position + 1) + 1
        stop = value_end(data, data[position], value)
        if data[position + 1 : value] == _ID:
            found = _in_one_way(data, position, stop, fields_read)
            found = _length_bytes(5 + len(found)) + found + b"\x00"
            break
        position, fields_left = stop, fields_left - 1
    fields_read.count += FIELDS_SEARCHED - fields_left
    key = before + found
    return key if len(key) <= KEY_BYTES_MAX else blake2b(key, digest_size=32).digest()


def _in_one_way(data: bytes, at: int, stop: int, fields_read: FieldsRead) -> bytes:
    """The field at `at`, which ends at `stop`, as bytes that are the same for values that are equal for MongoDB. In a
    document, that is so of 256 fields; one with more stays as it is."""
    parts, position, fields_left = list[bytes](), at, FIELDS_SEARCHED
    append, size_of, zero_after = parts.append, FIXED_BYTES.get, data.index
    while position < stop:
        kind = data[position]
        if not kind:  # a document ends
            append(b"\x00")
            position += 1
            continue
        if not fields_left:
            parts = [data[at:stop]]
            break
        fields_left -= 1
        value = zero_after(0, position + 1) + 1
        if kind in _NUMBERS:
            end = value + FIXED_BYTES[kind]
            if kind == DECIMAL:
                fields_read.count += _MORE_OF_DECIMAL
            kind, number = _number(data, kind, value)
            parts += (bytes((kind,)), data[position + 1 : value], number)
        elif (size := size_of(kind)) is not None:
            end = value + size
            append(data[position:end])
        elif kind in (DOCUMENT, ARRAY):
            end = value + 4
            append(data[position:value])
        else:
            end = value_end(data, kind, value)
            parts += (bytes((STRING,)), data[position + 1 : end]) if kind == SYMBOL else (data[position:end],)
        position = end
    fields_read.count += FIELDS_SEARCHED - fields_left
    return b"".join(parts)


def _number(data: bytes, kind: int, at: int) -> tuple[int, bytes]:
    """A number in the smallest type that has it, and its bytes: as a 32-bit or 64-bit integer, a double, or as text."""
    if kind == INT64:
        return _whole(int.from_bytes(data[at : at + 8], "little", signed=True))
    if kind == DECIMAL:
        return _decimal(int.from_bytes(data[at : at + 16], "little"))
    return _real(*_double.unpack_from(data, at))


def _decimal(bits: int) -> tuple[int, bytes]:
    """A Decimal128 in the smallest type that has its value. By integers alone: Python's decimals take 20 us, and those
    of one event would take milliseconds."""
    coefficient, is_negative = bits & _COEFFICIENT_MASK, bits >> 127
    if bits >> 125 & 0b11 == 0b11:  # no number, or a number in a form in which the coefficient is too large
        if (special := bits >> 122 & 0b11111) >= _SPECIAL:
            infinity = -_INFINITY if is_negative else _INFINITY
            return DOUBLE, _double.pack(infinity if special == _SPECIAL else _NOT_A_NUMBER)
        coefficient = 0
    if not 0 < coefficient <= _COEFFICIENT_MAX:
        return _whole(0)
    text = str(coefficient)
    digits = text.rstrip("0")
    exponent = (bits >> _COEFFICIENT_BITS & 0x3FFF) - _EXPONENT_BIAS + len(text) - len(digits)
    sign = "-" * is_negative
    if -len(_FIVES) < exponent < 0:
        # A double is an integer divided by a power of 2, so the 5s in 10^-exponent must divide the number.
        quotient, rest = divmod(int(sign + digits), _FIVES[-exponent])
        if not rest and float(quotient) == quotient:
            return DOUBLE, _double.pack(ldexp(quotient, exponent))
    elif 0 <= exponent <= _WHOLE_DOUBLE_ZEROS_MAX:
        number = int(sign + digits) * 10**exponent
        if -_INT64_MAX <= number < _INT64_MAX:
            return _whole(number)
        if float(number) == number:
            return DOUBLE, _double.pack(number)
    return DECIMAL, str(Decimal(f"{sign}{digits}E{exponent}")).encode()


def _real(real: float) -> tuple[int, bytes]:
    if real.is_integer() and -_INT64_MAX <= real < _INT64_MAX:
        return _whole(int(real))
    return DOUBLE, _double.pack(real if real == real else _NOT_A_NUMBER)


def _whole(number: int) -> tuple[int, bytes]:
    is_small = -_INT32_MAX <= number < _INT32_MAX
    return (
        (INT32, number.to_bytes(4, "little", signed=True))
        if is_small
        else (INT64, number.to_bytes(8, "little", signed=True))
    )
