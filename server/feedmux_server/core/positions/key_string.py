"""Reads MongoDB's KeyString, as far as a person wants to see what a resume token says.

Types that a KeyString keeps apart only by type bits come out alike: a whole double as an integer, a decimal
as the nearest float. So nothing is decided by values that were read here; `resume_token` reads the leading
fields by itself, and compares document keys as bytes.
"""

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from bson import Binary, Code, DatetimeMS, MaxKey, MinKey, ObjectId, Regex, Timestamp

_DEPTH_MAX: Final = 100
_ZERO: Final = 0x29
_SIGN: Final = 1 << 63


class KeyStringReader:
    """Reads one value after the other. Raises ValueError on anything it does not know."""

    __slots__ = ("_data", "offset")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.offset = 0

    @property
    def at_end(self) -> bool:
        return self.offset >= len(self._data)

    def read(self, depth: int = 0) -> Any:
        if depth > _DEPTH_MAX:
            raise ValueError("nested too deeply")
        kind = self._byte()
        if 0x1E <= kind <= 0x34:
            return self._number(kind)
        if kind == 0x46:
            return self._object(depth)
        if kind == 0x50:
            return self._array(depth)
        read = _READERS.get(kind)
        if read is None:
            raise ValueError("unknown type")
        return read(self)

    def raw_fields(self) -> dict[str, bytes]:
        """An object's fields with their values as they stand there."""
        if self._byte() != 0x46:
            raise ValueError("no object")
        fields: dict[str, bytes] = {}
        while not self._ends():
            self._byte()
            name = self.cstring()
            begin = self.offset
            self.read()
            fields[name] = self._data[begin : self.offset]
        return fields

    def take(self, count: int) -> bytes:
        end = self.offset + count
        if count < 0 or end > len(self._data):
            raise ValueError("cut short")
        taken = self._data[self.offset : end]
        self.offset = end
        return taken

    def integer(self, count: int) -> int:
        return int.from_bytes(self.take(count))

    def cstring(self) -> str:
        end = self._data.find(0, self.offset)
        if end < 0:
            raise ValueError("cut short")
        return (self.take(end - self.offset) + self.take(1))[:-1].decode()

    def string(self) -> str:
        """Ends with NUL; a NUL within is followed by 0xFF."""
        parts = []
        while True:
            parts.append(self.cstring())
            if self.at_end or self._data[self.offset] != 0xFF:
                return "\0".join(parts)
            self.offset += 1

    def binary(self) -> UUID | Binary:
        count = self._byte()
        if count == 0xFF:
            count = self.integer(4)
        subtype = self._byte()
        content = self.take(count)
        return UUID(bytes=content) if subtype == 4 and count == 16 else Binary(content, subtype)

    def _byte(self) -> int:
        return self.take(1)[0]

    def _ends(self) -> bool:
        if self.at_end:
            raise ValueError("cut short")
        if self._data[self.offset] == 0:
            self.offset += 1
            return True
        return False

    def _object(self, depth: int) -> dict[str, Any]:
        document: dict[str, Any] = {}
        while not self._ends():
            self._byte()  # the kind of the value, which comes again with it
            name = self.cstring()
            document[name] = self.read(depth + 1)
        return document

    def _array(self, depth: int) -> list[Any]:
        values = []
        while not self._ends():
            values.append(self.read(depth + 1))
        return values

    def _number(self, kind: int) -> int | float:
        if kind == 0x1E:
            return float("nan")
        if kind == _ZERO:
            return 0
        if kind == 0x34:
            raise ValueError("unknown type")
        # Negative numbers are the mirror image: the kind about zero, the bytes inverted.
        negative = kind < _ZERO
        magnitude = self._magnitude(2 * _ZERO - kind if negative else kind, 0xFF if negative else 0)
        return -magnitude if negative else magnitude

    def _magnitude(self, kind: int, invert: int) -> int | float:
        if kind == 0x2A:
            bits = self._inverted(8, invert)
            self._skip_continuation(bits)
            return _rounded(_double(bits >> 2), bits)
        if kind == 0x33:
            bits = self._inverted(8, invert)
            if bits == (1 << 64) - 1:
                return float("inf")
            return _whole(_double((bits | _SIGN) >> 1))
        count = kind - 0x2A
        value = self._inverted(count, invert)
        if not value & 1:
            return value >> 1
        fraction_bytes = 8 - count
        fraction = self._inverted(fraction_bytes, invert)
        self._skip_continuation(fraction)
        exact = fraction >> 2 << 2
        return _rounded((value >> 1) + exact / (1 << 8 * fraction_bytes), fraction)

    def _inverted(self, count: int, invert: int) -> int:
        return int.from_bytes(bytes(byte ^ invert for byte in self.take(count)))

    def _skip_continuation(self, bits: int) -> None:
        # An odd marker: the decimal is not the rounded double, its remaining digits follow.
        if bits & 1:
            self.take(8)


def _double(bits: int) -> float:
    (value,) = struct.unpack(">d", bits.to_bytes(8))
    return float(value)


def _whole(value: float) -> int | float:
    return int(value) if value < 1e19 else value


def _rounded(value: float, bits: int) -> float:
    """A marker other than 0 is a decimal: the double rounded to 15 digits is nearer to it."""
    return float(f"{value:.15g}") if bits & 3 else value


_READERS: Final[dict[int, Callable[[KeyStringReader], Any]]] = {
    0x0A: lambda reader: MinKey(),
    0x0F: lambda reader: None,
    0x14: lambda reader: None,
    0x3C: KeyStringReader.string,
    0x5A: KeyStringReader.binary,
    0x64: lambda reader: ObjectId(reader.take(12)),
    0x6E: lambda reader: False,
    0x6F: lambda reader: True,
    0x78: lambda reader: DatetimeMS(reader.integer(8) - _SIGN),
    0x82: lambda reader: Timestamp(reader.integer(4), reader.integer(4)),
    0x8C: lambda reader: Regex(reader.cstring(), reader.cstring()),
    0xA0: lambda reader: Code(reader.string()),
    0xF0: lambda reader: MaxKey(),
}
