"""Batches and events as the user sees them.

A batch is a view of the bytes of its message; nothing is decoded, split or copied until it is requested, so that a
batch costs the same whatever it holds. `responses` makes batches, `delivery_tracker` numbers them, and sessions
deliver them. Ordinals exist only in the client: they count from 1 over the life of a session object, across reconnects.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, NoReturn

import bson
from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp

from feedmux.errors import ProtocolError
from feedmux.extended_json import decode
from feedmux.positions import FeedPosition, event_id, json_event_id

_INT32 = struct.Struct("<i")
_SMALLEST_DOCUMENT = 5
_WINDOW_EVENTS = 64
"""How many events a loop over events decodes together. A whole batch at once would leave thousands of live objects, and
Python's full garbage collections over them would add a third to the decoding time (measured: 6.1 against 3.5 µs per
event)."""


class Event:
    """One change event."""

    __slots__ = ("batch", "index")

    def __init__(self, batch: "Batch", index: int) -> None:
        self.batch = batch
        self.index = index

    @property
    def document(self) -> Any:
        """The event, decoded with the session's codec options, together with some neighbouring events.

        The same object while events are taken in order; going back to earlier events decodes the whole batch again.
        Raises bson.errors.InvalidBSON only for the event that has a value which the codec options cannot represent.
        """
        first, window = self.batch._window
        at = self.index - first
        if 0 <= at < len(window):
            return window[at]
        return self.batch._document(self.index)

    @property
    def raw(self) -> bytes:
        """The event's bytes: BSON as MongoDB sent it, or extended JSON in UTF-8."""
        return self.batch.raw_event(self.index)

    @property
    def resume_token(self) -> dict[str, Any] | None:
        """MongoDB's resume token: the event's `_id`. None if the pipeline removed it."""
        return self.batch.event_token(self.index)

    @property
    def snapshot(self) -> bool:
        """Whether the event is a document of a copy (start `snapshot`) rather than a change."""
        return self.batch.snapshot

    @property
    def sequence(self) -> int:
        """The number of this event within the session object, from 1, without gaps."""
        return self.batch.first_sequence + self.index

    def __repr__(self) -> str:
        return f"<Event {self.sequence}>"


new_event = Event.__new__
"""`new_event(Event)` makes an event without a batch: see `SessionBase`."""


class Batch(ABC):
    """Consecutive events in MongoDB's order. `len(batch)` is their number."""

    __slots__ = (
        "_count", "_documents", "_options", "_owner", "_read_time_ns", "_window", "feed_position", "first_sequence",
        "generation", "snapshot",
    )  # fmt: skip

    def __init__(self, count: int, feed_position: FeedPosition, read_time_ns: int, options: CodecOptions[Any]) -> None:
        self._count = count
        self._options = options
        self._documents: list[Any] | None = None
        # One object, replaced as a whole: events of a batch may be in the hands of several threads.
        self._window: tuple[int, list[Any]] = (0, [])
        self._read_time_ns = read_time_ns
        self._owner: object = None
        self.first_sequence = 0
        self.feed_position = feed_position
        self.snapshot = False
        """Whether the events are documents of a copy (start `snapshot`) rather than changes: all of them, or none."""
        self.generation = 0
        """Of the last copy that this session has read, or reads; 0 for none. See `SnapshotComplete`."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Event]:
        return self.events()

    def events(self) -> Iterator[Event]:
        """Iterate over the events one by one."""
        return map(Event, repeat(self), range(self._count))

    @property
    def last_sequence(self) -> int:
        """The number of the last event within the session object."""
        return self.first_sequence + self._count - 1

    @property
    def documents(self) -> list[Any]:
        """Return all events, decoded at once with the session's codec options; decoded once and cached.

        Raises bson.errors.InvalidBSON for values that the codec options cannot represent, and ProtocolError if the
        number of documents is not the announced one.
        """
        if self._documents is None:
            documents = self._decode(0, self._count)
            if len(documents) != self._count:
                raise ProtocolError(f"a batch of {self._count} events holds {len(documents)} documents")
            self._documents = documents
            self._window = 0, documents
        return self._documents

    @property
    def position(self) -> bytes:
        """The position after the last event, to be stored unchanged. Empty for the front part of a batch."""
        return self.feed_position.position

    @property
    def resume_token(self) -> dict[str, Any] | None:
        """MongoDB's resume token for the position after the last event."""
        return self.feed_position.resume_token

    @property
    def cluster_time(self) -> Timestamp | None:
        """The cluster time of the position after the last event."""
        return self.feed_position.cluster_time

    @property
    def read_time(self) -> datetime | None:
        """When the server read the first of these events from MongoDB (UTC); None for a fragmented event."""
        if not self._read_time_ns:
            return None
        return datetime.fromtimestamp(self._read_time_ns / 1e9, UTC)

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the events, as credit counts them."""

    @abstractmethod
    def check(self) -> None:
        """Raise ProtocolError if the batch does not hold as many events as it announced."""

    @abstractmethod
    def _decode(self, first: int, end: int) -> list[Any]:
        """Return the documents of the events [first, end)."""

    def _document(self, index: int) -> Any:
        """Return one event's document if the decoded window does not have it."""
        first, end = index, min(index + _WINDOW_EVENTS, self._count)
        if index < self._window[0]:
            first, end = 0, self._count
        try:
            window = self._decode(first, end)
        except Exception:  # noqa: BLE001 - also errors of the user's codecs; the error of this event is raised below
            first, window = index, self._decode(index, index + 1)
        self._window = first, window
        return window[index - first]

    @abstractmethod
    def raw_event(self, index: int) -> bytes:
        """Return the bytes of one event."""

    def event_token(self, index: int) -> dict[str, Any] | None:
        """Return the resume token of one event as a document."""
        key = self.event_key(index)
        return bson.decode(key) if key else None

    @abstractmethod
    def event_key(self, index: int) -> bytes:
        """Return the resume token of one event as bytes that can be compared and sent; empty if it has none."""

    @abstractmethod
    def part(self, first: int, end: int) -> "Batch":
        """Return the events [first, end) as a separate batch over the same bytes."""

    @abstractmethod
    def twin(self) -> "Batch":
        """Return the same events with the same numbers over the same bytes, without the decoded documents.

        For retaining a batch only for its tokens: decoded documents are ten times its size.
        """

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "feedmux's events and batches cannot be pickled or deep-copied, because they belong to a session: pass on"
            " event.document or event.raw"
        )

    def _number_as(self, other: "Batch", skipped: int) -> None:
        self.first_sequence = other.first_sequence + skipped
        self._owner = other._owner
        self.snapshot = other.snapshot
        self.generation = other.generation

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.first_sequence}..{self.last_sequence}>"


class BsonBatch(Batch):
    """A batch of concatenated BSON documents."""

    __slots__ = ("_offsets", "_view")

    def __init__(
        self, view: memoryview, count: int, feed_position: FeedPosition, read_time_ns: int, options: CodecOptions[Any]
    ) -> None:
        super().__init__(count, feed_position, read_time_ns, options)
        if len(view) < count * _SMALLEST_DOCUMENT or _INT32.unpack_from(view, 0)[0] > len(view):
            raise ProtocolError("the lengths of a batch do not add up")
        self._view = view
        self._offsets: list[int] | None = None

    @property
    def raw(self) -> memoryview:
        """The events' BSON documents, concatenated, without a copy. `bytes(batch.raw)` copies."""
        return self._view

    @property
    def size_bytes(self) -> int:
        return len(self._view)

    @property
    def offsets(self) -> list[int]:
        """The offset of each event within `raw`, and of the end: `len(batch) + 1` numbers. Raises ProtocolError."""
        if self._offsets is None:
            self._offsets = _split(self._view, self._count)
        return self._offsets

    def check(self) -> None:
        _ = self.offsets

    def _decode(self, first: int, end: int) -> list[Any]:
        view = self._view
        if end - first < self._count:
            offsets = self.offsets
            view = view[offsets[first] : offsets[end]]
        return bson.decode_all(view, self._options)

    def raw_event(self, index: int) -> bytes:
        offsets = self.offsets
        return bytes(self._view[offsets[index] : offsets[index + 1]])

    def event_key(self, index: int) -> bytes:
        return event_id(self.raw_event(index))

    def part(self, first: int, end: int) -> Batch:
        offsets = self.offsets
        view = self._view[offsets[first] : offsets[end]]
        feed_position = self.feed_position if end == self._count else FeedPosition()
        taken = BsonBatch(view, end - first, feed_position, self._read_time_ns, self._options)
        taken._number_as(self, first)
        return taken

    def twin(self) -> Batch:
        twin = BsonBatch(self._view, self._count, self.feed_position, self._read_time_ns, self._options)
        twin._number_as(self, 0)
        return twin


class JsonBatch(Batch):
    """A batch of extended JSON texts."""

    __slots__ = ("_size_bytes", "texts")

    def __init__(
        self, texts: tuple[str, ...], feed_position: FeedPosition, read_time_ns: int, options: CodecOptions[Any]
    ) -> None:
        super().__init__(len(texts), feed_position, read_time_ns, options)
        self.texts = texts
        """One text per event."""
        self._size_bytes = sum(map(_utf8_len, texts))

    def check(self) -> None:
        return  # Counted when the message was read.

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def _decode(self, first: int, end: int) -> list[Any]:
        return [decode(text, self._options) for text in self.texts[first:end]]

    def raw_event(self, index: int) -> bytes:
        return self.texts[index].encode()

    def event_key(self, index: int) -> bytes:
        try:
            return json_event_id(self.texts[index])
        except ValueError as error:
            raise ProtocolError("an event is not extended JSON") from error

    def part(self, first: int, end: int) -> Batch:
        feed_position = self.feed_position if end == self._count else FeedPosition()
        taken = JsonBatch(self.texts[first:end], feed_position, self._read_time_ns, self._options)
        taken._number_as(self, first)
        return taken

    def twin(self) -> Batch:
        twin = JsonBatch(self.texts, self.feed_position, self._read_time_ns, self._options)
        twin._number_as(self, 0)
        return twin


def _utf8_len(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _split(view: memoryview, count: int) -> list[int]:
    offsets = [0] * (count + 1)
    at, end = 0, len(view)
    length_at = _INT32.unpack_from
    try:
        for index in range(1, count + 1):
            size: int = length_at(view, at)[0]
            if size < _SMALLEST_DOCUMENT:
                raise ProtocolError("the lengths of a batch do not add up")
            at += size
            offsets[index] = at
    except struct.error:
        at = end + 1
    if at != end:
        raise ProtocolError("the lengths of a batch do not add up")
    return offsets
