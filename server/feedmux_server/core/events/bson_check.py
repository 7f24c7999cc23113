"""Walks BSON that came from outside without decoding it, and checks every length, string and depth.

The walk keeps its own stack, so that the input's depth cannot become ours. It reports where a fault is as a
field path. `pipeline_policy` checks the elements that pass; collation and comment are only walked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.bson_walk import (
    ARRAY,
    BINARY,
    BOOL,
    CODE,
    CODE_WITH_SCOPE,
    DB_POINTER,
    DOCUMENT,
    FIXED_BYTES,
    OBJECT_ID_BYTES,
    REGEX,
    STRING,
    SYMBOL,
)

DEPTH_MAX: Final = 100
# The subtype that repeats the length within.
_OLD_BINARY: Final = 2
_STRINGS: Final = frozenset({STRING, CODE, SYMBOL})
_DOCUMENT_BYTES_MIN: Final = 5


@dataclass(frozen=True, slots=True)
class Element:
    """One field, in the order of the bytes; the fields of a document follow it, one deeper."""

    name: str
    kind: int
    """BSON type byte."""
    depth: int
    """1 for the fields of the outermost document."""
    path: tuple[str, ...]


@dataclass(slots=True)
class _Frame:
    end: int
    """Where the document's closing NUL stands."""
    name: str
    is_array: bool
    index: int = 0
    end_outer: int = 0
    """For code with scope, where the value itself ends; else 0."""


def check_bson(document: bytes, field: str) -> None:
    """Raises FeedmuxError BSON_INVALID, with the request's field and the path of the fault in it."""
    for _ in walk(document, field):
        pass


def walk(document: bytes, field: str) -> Iterator[Element]:
    """All elements at any depth. Raises FeedmuxError BSON_INVALID at the first fault."""
    return _Walk(document, field).elements()


class _Walk:
    __slots__ = ("_data", "_field", "_position", "_stack")

    def __init__(self, data: bytes, field: str) -> None:
        self._data = data
        self._position = 0
        self._field = field
        self._stack: list[_Frame] = []

    def elements(self) -> Iterator[Element]:
        stack = self._stack
        self._enter("", len(self._data), is_array=False)
        if stack[0].end != len(self._data) - 1:
            raise self._fault("bytes follow the end of the document")
        while stack:
            frame = stack[-1]
            if self._position == frame.end:
                self._leave(frame)
                continue
            yield self._element(frame)

    def _element(self, frame: _Frame) -> Element:
        kind = self._data[self._position]
        self._position += 1
        name = self._cstring(frame.end, "a field name")
        if frame.is_array:
            name = str(frame.index)
            frame.index += 1
        element = Element(name, kind, len(self._stack), (*(f.name for f in self._stack[1:]), name))
        self._value(kind, name, frame.end)
        return element

    def _value(self, kind: int, name: str, end: int) -> None:
        size = FIXED_BYTES.get(kind)
        if size is not None:
            self._skip(size, end, name)
            if kind == BOOL and self._data[self._position - 1] > 1:
                raise self._fault("a boolean is neither true nor false", name)
        elif kind in (DOCUMENT, ARRAY):
            self._enter(name, end, is_array=kind == ARRAY)
        elif kind in _STRINGS:
            self._string(end, name)
        elif kind == BINARY:
            self._binary(end, name)
        elif kind == REGEX:
            self._cstring(end, "a regular expression", name)
            self._cstring(end, "a regular expression", name)
        elif kind == DB_POINTER:
            self._string(end, name)
            self._skip(OBJECT_ID_BYTES, end, name)
        elif kind == CODE_WITH_SCOPE:
            end_outer = self._position + self._length(end, name)
            if not self._position <= end_outer <= end:
                raise self._fault("a length does not fit", name)
            self._string(end_outer, name)
            self._enter(name, end_outer, is_array=False)
            self._stack[-1].end_outer = end_outer
        else:
            raise self._fault("the type of a value is not known", name)

    def _binary(self, end: int, name: str) -> None:
        length = self._length(end, name)
        start = self._position
        self._skip(length + 1, end, name)
        if self._data[start] == _OLD_BINARY:
            inner = int.from_bytes(self._data[start + 1 : start + 5], "little")
            if length < 4 or inner != length - 4:
                raise self._fault("a length does not fit", name)

    def _enter(self, name: str, end: int, *, is_array: bool) -> None:
        start = self._position
        if len(self._stack) >= DEPTH_MAX:
            raise self._fault(f"documents are nested more than {DEPTH_MAX} deep", name)
        size = self._length(end, name)
        if size < _DOCUMENT_BYTES_MIN or start + size > end or self._data[start + size - 1] != 0:
            raise self._fault("the length of a document does not fit", name)
        self._stack.append(_Frame(start + size - 1, name, is_array))

    def _leave(self, frame: _Frame) -> None:
        if frame.end_outer and frame.end + 1 != frame.end_outer:
            raise self._fault("a length does not fit")
        self._position = frame.end + 1
        self._stack.pop()

    def _length(self, end: int, name: str) -> int:
        start = self._position
        self._skip(4, end, name)
        length = int.from_bytes(self._data[start : start + 4], "little", signed=True)
        if length < 0:
            raise self._fault("a length is negative", name)
        return length

    def _skip(self, count: int, end: int, name: str) -> None:
        self._position += count
        if self._position > end:
            raise self._fault("a value is cut short", name)

    def _string(self, end: int, name: str) -> None:
        length = self._length(end, name)
        start = self._position
        self._skip(length, end, name)
        if length == 0 or self._data[self._position - 1] != 0:
            raise self._fault("a string does not end with NUL", name)
        self._text(start, self._position - 1, "a string", name)

    def _cstring(self, end: int, what: str, name: str = "") -> str:
        start = self._position
        stop = self._data.find(0, start, end)
        if stop < 0:
            raise self._fault(f"{what} is cut short", name)
        self._position = stop + 1
        return self._text(start, stop, what, name)

    def _text(self, start: int, stop: int, what: str, name: str) -> str:
        try:
            return self._data[start:stop].decode()
        except UnicodeDecodeError:
            raise self._fault(f"{what} is not UTF-8", name) from None

    def _fault(self, message: str, name: str = "") -> FeedmuxError:
        names = (*(frame.name for frame in self._stack[1:]), name)
        path = shorten_path(".".join(part for part in names if part))
        where = f"{self._field} at {path}" if path else self._field
        return FeedmuxError(
            ErrorReason.BSON_INVALID,
            f"malformed BSON in {where}: {message}",
            {"field": self._field, "path": path},
            field=self._field,
        )


def shorten_path(path: str) -> str:
    """Paths go into error details, whose size is limited, and their names come from the input."""
    return path if len(path) <= 200 else path[:200] + "…"
