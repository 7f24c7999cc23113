"""Finds values in BSON that MongoDB sent, without decoding or checking it.

The one table of BSON's types for the server. `bson_check` walks what clients sent, and checks every byte.
"""

import sys
from struct import Struct
from typing import Final

DOUBLE: Final = 0x01
STRING: Final = 0x02
DOCUMENT: Final = 0x03
ARRAY: Final = 0x04
BINARY: Final = 0x05
OBJECT_ID: Final = 0x07
BOOL: Final = 0x08
REGEX: Final = 0x0B
DB_POINTER: Final = 0x0C
CODE: Final = 0x0D
SYMBOL: Final = 0x0E
CODE_WITH_SCOPE: Final = 0x0F
INT32: Final = 0x10
INT64: Final = 0x12
DECIMAL: Final = 0x13

OBJECT_ID_BYTES: Final = 12
FIXED_BYTES: Final = {
    DOUBLE: 8,
    0x06: 0,  # undefined
    OBJECT_ID: OBJECT_ID_BYTES,
    BOOL: 1,
    0x09: 8,  # date
    0x0A: 0,  # null
    INT32: 4,
    0x11: 8,  # timestamp
    INT64: 8,
    DECIMAL: 16,
    0x7F: 0,  # MaxKey
    0xFF: 0,  # MinKey
}
"""The bytes of a value, by its type; those of every other type depend on the value."""
# What the length at the beginning of a value leaves out.
_NOT_IN_LENGTH: Final = {
    STRING: 4,
    DOCUMENT: 0,
    ARRAY: 0,
    BINARY: 5,
    DB_POINTER: 4 + OBJECT_ID_BYTES,
    CODE: 4,
    SYMBOL: 4,
    CODE_WITH_SCOPE: 0,
}

length_at: Final = Struct("<i").unpack_from
"""The length at a position, as a tuple of one: so a hot loop need not call a function of Python."""


def find(data: bytes | bytearray, at: int, name: bytes, kind: int, fields_max: int = sys.maxsize) -> int | None:
    """Where the value of field `name`, if it has type `kind`, begins in the document at `at`. Only the first
    `fields_max` fields are searched.

    Raises ValueError on a type that BSON does not have.
    """
    end = at + length_at(data, at)[0] - 1
    at += 4
    size_of, zero_after = FIXED_BYTES.get, data.index
    while at < end and fields_max > 0:
        found, name_end = data[at], zero_after(0, at + 1)
        if found == kind and data[at + 1 : name_end] == name:
            return name_end + 1
        size = size_of(found)
        at = value_end(data, found, name_end + 1) if size is None else name_end + 1 + size
        fields_max -= 1
    return None


def find_text(data: bytes, at: int, name: bytes) -> bytes:
    """The UTF-8 of the field `name` of the document at `at`; empty where it has no string of this name."""
    value = find(data, at, name, STRING)
    return text_at(data, value) if value is not None else b""


def value_end(data: bytes | bytearray, kind: int, at: int) -> int:
    """Where the value of type `kind` at `at` ends, and the next element begins. Raises ValueError as `find` does."""
    size = FIXED_BYTES.get(kind)
    if size is not None:
        return at + size
    beside = _NOT_IN_LENGTH.get(kind)
    if beside is not None:
        return at + beside + int(length_at(data, at)[0])
    if kind == REGEX:
        return data.index(0, data.index(0, at) + 1) + 1
    raise ValueError(f"no BSON type {kind}")


def text_at(data: bytes, at: int) -> bytes:
    """The UTF-8 of the string at `at`."""
    return data[at + 4 : at + 3 + length_at(data, at)[0]]
