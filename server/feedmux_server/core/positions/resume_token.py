"""MongoDB's resume tokens: the only module that knows their layout.

A token is a BSON document `{_data: hex}`, at times with `_typeBits`; `_data` is a KeyString whose leading
fields say where in the history of the cluster it stands. Within one token version the bytes sort as the
events do; across versions only the leading fields do (`is_after`, `reaches`). A layout that is not
known is never compared: decoding raises.

The fragments of a split event have the event's own token with a number after it, so they sort after the token of the
whole event. Another feed may split the event in another way, or not at all: for it, a position is before the event
(`event_start`) or after all its fragments (`after_event`). MongoDB knows no tokens for these two.

A token holds the document's `_id` in twice its size, so it may have megabytes. Of a long token, only the beginning and
a digest are kept (docs/adr/0022): enough to recognize its event, and to order it among events of other documents.
Down the data path: chunks keep tokens, `position` wraps them, `source` hands them to MongoDB as they are.
"""

from binascii import Error as HexError
from binascii import hexlify, unhexlify
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, Self
from uuid import UUID

import bson

from feedmux_server.core.positions.key_string import KeyStringReader

PlaceKey = tuple[int, int, int, int, bytes]
"""Cluster time (seconds << 32 | increment), token type, transaction index, fromInvalidate, what follows.

What follows is empty for a high-water mark, so that the whole key compares with that of any token."""

HIGH_WATER_MARK: Final = 0
EVENT: Final = 128
_VERSIONS: Final = (1, 2)
_TIMESTAMP: Final = 0x82
_ZERO: Final = 0x29
_NUMBER_BASE: Final = 0x2A
_NUMBER_MAX: Final = 0x32
_FALSE: Final = 0x6E
_TRUE: Final = 0x6F
_END: Final = 0x04
WHOLE_BYTES_MAX: Final = 4000
"""A token with a longer KeyString is long. Up to this size a position contains the whole token."""
_AFTER_DOCUMENTS: Final = b"\xff" * 8
_SNAPSHOT: Final = b"\x03snapshot\x00"
"""The type and name of the field beside `_data` in the `_id` of a copied document."""
_BEGINNING_BYTES: Final = 1024
_ALL_FRAGMENTS: Final = b"\xff"
"""In place of the number of a fragment: after the last one, however many there are."""
_MOMENT_BYTES: Final = 26
"""Of a token's time, version, type and transaction index, and fewer than any event's token has."""
_PLACES_BYTES_MAX: Final = 64
"""More than what a token has before its tail: `_read_places`."""
_DATA: Final = b"\x02_data\x00"
_DIGEST_BYTES: Final = 16
_USUAL_BYTES: Final = 512
"""A token with a small `_id`. What each chunk costs includes this much."""
# After the beginning of a long token. Servers that do not know digests compare the tail alone: by this byte, the event
# of the token is before the position and not after it.
_CUT: Final = b"\xff"
# What follows the cluster time of a high-water mark, and the tail in it: version 2 writes null for the
# collection that is missing (6.0.5 and 6.0.27 refuse one without).
_HIGH_WATER_MARKS: Final = {1: b"\x2b\x02\x29\x29\x6e\x04", 2: b"\x2b\x04\x29\x29\x6e\x14\x04"}
_HIGH_WATER_MARK_TAILS: Final = {1: b"", 2: b"\x14"}


class UnknownTokenLayout(ValueError):
    """A resume token that this module cannot read, and that must not be compared with others."""


class Given(Enum):
    """Where a token comes from, and so how MongoDB may be asked for it. It stays with the token, in positions too."""

    BY_MONGODB = 0
    """MongoDB sent it in this feed, or it is a high-water mark of ours."""
    BY_CLIENT = 1
    """A client gave it, and MongoDB has not judged it yet: its refusal would be for that client only."""
    AS_TIME = 2
    """It may not be of this feed: only its cluster time is asked for."""


@dataclass(frozen=True, slots=True)
class Copied:
    """How far a copy of existing documents is, in a position within the copy.

    The position then says: every change at or before it to a document whose `_id` is at or before `up_to`, and of other
    documents at most deletes. In a copy of several collections, that is of the collection named here, and every change
    to those before it: collections are copied in the order of their databases and names.
    """

    up_to: bytes = b""
    """The BSON document `{_id: …}` of the last copied document; empty for none."""
    documents: int = 0
    """The number of documents copied so far."""
    database: str = ""
    """With `collection`: the one being copied, in a copy of several. Both are empty before the first one."""
    collection: str = ""
    generation: int = 0
    """Which copy it is. A document that neither this copy nor a change since its beginning has brought is gone."""
    is_behind: bool = False
    """In no position: documents after `up_to` were copied too, whose `_id`s have no room in positions."""
    passed: bytes = b""
    """In no position, because no reader may know it: documents up to this `{_id: …}` were read too, and are not
    granted. Empty for none after `up_to`."""
    until: "ResumeToken | None" = None
    """In no position: set to read a part of a copy again, exactly up to there (`core.delivery.copy_range`)."""

    @property
    def namespace(self) -> tuple[str, str]:
        """Database and collection. Python orders them as MongoDB does, by code points."""
        return self.database, self.collection


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """A position in the history of a cluster, as MongoDB wrote it."""

    raw: bytes
    """The BSON document as MongoDB sent it; for a long token a summary, which MongoDB cannot read."""
    version: int
    key: PlaceKey
    given: Given = field(default=Given.BY_MONGODB, compare=False)
    digest: bytes = b""
    """Set if the token is long: a hash of its KeyString without the fragment number. The key then has the beginning of
    what follows, this digest and the fragment number."""
    copied: Copied | None = field(default=None, compare=False)
    """Set within a copy of existing documents. The documents of one cluster time are at its high-water mark, whose key
    then ends with their number: after the mark itself, and before the first event of that time."""

    def while_copying(self, copied: Copied) -> Self:
        """This position within a copy."""
        if self.from_invalidate:
            # A collection that was renamed to this name has documents, and no changes that say so.
            copied = replace(copied, up_to=b"", passed=b"")
        key = (*self.key[:4], copied.documents.to_bytes(8)) if self.is_high_water_mark else self.key
        return replace(self, key=key, copied=copied)

    @property
    def begins_copy(self) -> bool:
        """Whether it is within a copy, and covers no document of it."""
        return self.copied is not None and self.copied == Copied(generation=self.copied.generation)

    def with_generation_after(self, generation: int) -> Self:
        """This position within a copy, which is of a generation after this one."""
        assert self.copied is not None
        return replace(self, copied=replace(self.copied, generation=max(self.copied.generation, generation + 1)))

    def outside_copy(self) -> "ResumeToken":
        """This position, for a read that knows nothing of the copy."""
        if self.is_high_water_mark:
            return ResumeToken.high_water_mark(self.cluster_time, self.version)
        return replace(self, copied=None)

    def copy_complete(self) -> Self:
        """The position after the last document of the copy at this high-water mark."""
        assert self.copied is not None
        assert self.is_high_water_mark
        return replace(self, key=(*self.key[:4], (self.copied.documents + 1).to_bytes(8)), copied=None)

    def after_documents(self) -> Self:
        """This high-water mark, after all documents of a copy that are at it, however many they are."""
        assert self.is_high_water_mark
        return replace(self, key=(*self.key[:4], _AFTER_DOCUMENTS))

    @property
    def cluster_time(self) -> int:
        """Seconds << 32 | increment."""
        return self.key[0]

    @property
    def last_time(self) -> int:
        """The newest cluster time of which the position may have passed an event."""
        return self.cluster_time - self.is_high_water_mark

    @property
    def is_high_water_mark(self) -> bool:
        return self.key[1] == HIGH_WATER_MARK

    @property
    def from_invalidate(self) -> bool:
        return self.key[3] == 1

    @property
    def extra_bytes(self) -> int:
        """What it retains in memory (the document, and what is compared of its KeyString) beyond a usual token."""
        at = self.copied
        copied = 0 if at is None else len(at.up_to) + len(at.passed) + len(at.database) + len(at.collection)
        return max(0, len(self.raw) + len(self.key[4]) + copied - _USUAL_BYTES)

    @property
    def may_be_inside_event(self) -> bool:
        """Whether fragments of the same event may follow. A token says which fragment it is, and not of how many.

        The rule for every position that is stored for others to begin at: not this place, unless the event itself said
        that the fragment is its last (`Chunk.ack_place`). A session may begin here, for a client that has the fragments
        before; a process that has not would get the rest of an event.
        """
        if self.is_high_water_mark:
            return False
        tail = self.key[4]
        if self.digest:
            return not tail.endswith((self.digest, self.digest + _ALL_FRAGMENTS))
        if tail.endswith((b"\0", b"\0" + _ALL_FRAGMENTS)):
            return False  # the end of the document key; a fragment number ends so only from 128 on
        _, _, fragment, undecoded = _read_tail(tail)
        return fragment is not None or bool(undecoded)

    def before_event(self) -> "ResumeToken":
        """This position, or if it may be inside an event, the high-water mark before the event: events of that time are
        delivered again."""
        return self.before_time() if self.may_be_inside_event else self

    def event_start(self) -> "ResumeToken":
        """This position, or if it may be inside an event, the position before that event. Of a long token, the
        high-water mark before it."""
        data = _key_string(self.raw)[:-1]
        event = data[: len(data) - _fragment_bytes(data)]
        if not self.may_be_inside_event or self.digest or event == data or not event.endswith(b"\0"):
            return self.before_event()
        # A token without its last byte sorts before that token, and after those of all other events before it.
        return self._with_key_string(event[:-1])

    def after_event(self) -> "ResumeToken":
        """The position after the whole event: after all its fragments, for a feed that may split it in another way. A
        position before an event stays as it is."""
        if self.is_high_water_mark or self.from_invalidate or self.version == 1:
            return self  # an event of version 1 is never split (`is_of_passed_event`)
        if self.digest:
            document = bson.decode(self.as_summary().raw)
            raw = bson.encode(document | {"digest": self.digest + _ALL_FRAGMENTS})
            return replace(self.from_position(raw), copied=self.copied)
        if _read_tail(self.key[4])[3]:
            return self
        return self._with_key_string(self._event_key_string() + _ALL_FRAGMENTS)

    def event_raw(self) -> bytes:
        """The token that MongoDB gives the event if it does not split it. Not of a long token."""
        return self.raw if self.version == 1 else self._with_key_string(self._event_key_string()).raw

    @property
    def is_of_mongodb(self) -> bool:
        """Whether MongoDB can read `raw`."""
        if self.digest:
            return False
        return self.given is not Given.AS_TIME or self.is_high_water_mark or not _read_tail(self.key[4])[3]

    def _event_key_string(self) -> bytes:
        """The KeyString of the event, without the number of a fragment, and without its end."""
        data = _key_string(self.raw)[:-1]
        if data.endswith(b"\0" + _ALL_FRAGMENTS):
            return data[:-1]
        return data[: len(data) - _fragment_bytes(data)] if self.may_be_inside_event else data

    def _with_key_string(self, data: bytes) -> "ResumeToken":
        """The position with another KeyString, of which MongoDB is asked for the time."""
        raw = bson.encode(bson.decode(self.raw) | {"_data": (data + bytes((_END,))).hex().upper()})
        return replace(self.from_position(raw), given=Given.AS_TIME, copied=self.copied)

    def before_time(self) -> "ResumeToken":
        """The high-water mark before all events of this position's cluster time, within the same copy."""
        mark = ResumeToken.high_water_mark(self.cluster_time, self.version)
        return mark if self.copied is None else mark.while_copying(self.copied)

    def is_after(self, other: "ResumeToken") -> bool:
        """Whether this position is surely later. Where the keys do not say so (`_sorts_with`), the events of one time,
        of several shards, may come in another order."""
        if self._sorts_with(other):
            return self.key > other.key
        return self.key[:4] > other.key[:4]

    def is_further(self, other: "ResumeToken") -> bool:
        """Whether this position is later, or equal and, of one reader, says how far a copy is by now."""
        return self.is_after(other) or (self.copied != other.copied and self.is_same(other))

    def reaches(self, other: "ResumeToken") -> bool:
        """Whether who has come here has surely passed `other`. Where the keys decide (`_sorts_with`), that is
        `not other.is_after(self)`; elsewhere both may be false, and then what lies between is to be delivered again
        rather than lost."""
        if self._sorts_with(other):
            return self.key >= other.key
        mine, others = self.key[:4], other.key[:4]
        return mine > others or (mine == others and self.is_high_water_mark)

    def _sorts_with(self, other: "ResumeToken") -> bool:
        """Whether the whole keys order the two: not across versions, and not for different tokens with the beginning
        of a long one."""
        if self.version != other.version:
            return False
        if self.digest == other.digest:  # usually both are empty
            return True
        return self._beginning != other._beginning

    @property
    def _beginning(self) -> bytes:
        return self.key[4][:_BEGINNING_BYTES]

    def is_of_passed_event(self, place: "ResumeToken") -> bool:
        """Whether this is the very event of `place`, a token of another version, or an earlier fragment of it."""
        if self.version == place.version or self.key[:4] != place.key[:4]:
            return False
        mine, its = _identity(self), _identity(place)
        if mine is None or its is None or mine[0] != its[0]:
            return False
        fragment, passed = mine[1], its[1]
        return passed is None or (fragment is not None and fragment <= passed)

    def is_same(self, other: "ResumeToken") -> bool:
        """Whether both are the token of one event, or of one fragment of it."""
        return self.version == other.version and self.key == other.key

    def given_as(self, given: Given) -> Self:
        return self if given is self.given else replace(self, given=given)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """From the BSON document. Raises `UnknownTokenLayout`."""
        data = _key_string(raw)
        version, key = _read_places(data)
        if len(raw) > WHOLE_BYTES_MAX and (len(data) > WHOLE_BYTES_MAX or _document(data) != raw):
            return cls._shortened(data, version, key)
        return cls(raw, version, key)

    @classmethod
    def decode_next(cls, raw: bytes, last: "ResumeToken") -> "ResumeToken":
        """`decode`, for a token that MongoDB sends at or after `last`, such as a postBatchResumeToken.

        An idle change stream names its last event with each answer. A long token that cannot be told from `last` as a
        position is not decoded: to decode 5 MB takes 25 ms.
        """
        if raw == last.raw and last.given is Given.BY_MONGODB and last.copied is None:
            return last
        if last.digest and len(raw) > WHOLE_BYTES_MAX and last._is_like(raw):
            return replace(last, given=Given.AS_TIME, copied=None)
        return cls.decode(raw)

    def _is_like(self, raw: bytes) -> bool:
        """Whether a token has the places, the beginning and the fragment of this long one. Then it is of the same
        event, or `is_after` is false for it."""
        end = 14 + int.from_bytes(raw[11:15], "little")
        try:
            head = unhexlify(raw[15 : min(end, 15 + 2 * (_PLACES_BYTES_MAX + _BEGINNING_BYTES))])
            version, key = _read_places(head + bytes((_END,)))
            tail = unhexlify(raw[end - 8 : end])[:-1]
        except ValueError:
            return False
        beginning = key[4][:_BEGINNING_BYTES]
        fragment = tail[len(tail) - _fragment_bytes(tail) :]
        return (version, key[:4], beginning) == (self.version, self.key[:4], self._beginning) and (
            raw[4:11] == _DATA and self.key[4] == beginning + _CUT + self.digest + fragment
        )

    @classmethod
    def _shortened(cls, data: bytes, version: int, key: PlaceKey) -> Self:
        """A long token, of which MongoDB can only be asked for the cluster time."""
        tail = key[4]
        fragment = tail[len(tail) - _fragment_bytes(tail) :]
        whole, kept = data[: -1 - len(fragment)], tail[: len(tail) - len(fragment)][:_BEGINNING_BYTES]
        digest = blake2b(whole, digest_size=_DIGEST_BYTES, person=b"feedmux-token").digest()
        head = data[: -1 - len(tail)]
        raw = bson.encode({"_data": (head + kept + _CUT + bytes((_END,))).hex().upper(), "digest": digest + fragment})
        return cls.from_position(raw)

    @classmethod
    def from_position(cls, raw: bytes) -> Self:
        """From a document in a position: a token, or the summary of a long one. Raises `UnknownTokenLayout`."""
        token = cls.decode(raw)
        match bson.decode(raw).get("digest"):
            case None:
                return token
            case bytes(digest) if len(digest) >= _DIGEST_BYTES and not token.digest:
                key = (*token.key[:4], token.key[4] + digest)
                return replace(token, key=key, given=Given.AS_TIME, digest=digest[:_DIGEST_BYTES])
        raise UnknownTokenLayout("the digest is malformed")

    def as_summary(self) -> Self:
        """This position as it is retained: without the bytes of a long token that a client gave."""
        return self if not self.digest or len(self.raw) <= WHOLE_BYTES_MAX else self.decode(self.raw)

    @classmethod
    def from_client(cls, raw: bytes) -> Self:
        """A token that a client gave, which must have the very form that MongoDB gives tokens. Raises
        `UnknownTokenLayout`.

        A token that came through another encoding (`_typeBits` as a document, a further field) may name a position
        in a ring, and yet be rejected once MongoDB is asked for it.
        """
        token = cls.decode(raw)
        if key_string(token) is None and not _has_form_of_mongodb(raw):
            raise UnknownTokenLayout("the token does not have MongoDB's form: _data, and sometimes _typeBits")
        return replace(token, raw=raw, given=Given.BY_CLIENT)

    @classmethod
    def from_key_string(cls, data: bytes) -> Self:
        """From the bytes that `_data` spells in hex. Raises `UnknownTokenLayout`."""
        return cls.decode(_document(data))

    @classmethod
    def from_packed(cls, data: bytes) -> Self:
        """From what `packed` gives. Raises `UnknownTokenLayout`."""
        end = 2 + int.from_bytes(data[:2])
        if end > len(data):
            raise UnknownTokenLayout("the token is cut short")
        return cls.from_position(data[2:] if end == 2 else _document(data[2:end], data[end:]))

    @classmethod
    def high_water_mark(cls, cluster_time: int, version: int = 1) -> Self:
        """The position just before the first event of `cluster_time`: a stream resumed there begins with that event."""
        if version not in _HIGH_WATER_MARKS or not 0 <= cluster_time < 1 << 64:
            raise ValueError("no such high-water mark")
        data = b"\x82" + cluster_time.to_bytes(8) + _HIGH_WATER_MARKS[version]
        return cls(_document(data), version, (cluster_time, HIGH_WATER_MARK, 0, 0, b""))


def beginning_of_copy(cluster_time: int, now_s: float) -> ResumeToken:
    """The position at which a copy of a feed begins, after this time.

    Its generation is the time: second, increment, and how long ago it was in 10 ms. A later copy of the feed has a
    greater one also if nothing was written since, because its pipeline or grants may withhold other documents. What an
    older generation has brought, and this one or a change since has not, is gone: every delete since then is delivered.
    Up to 2^53, numbers are exact in JavaScript too.
    """
    age = min(max(int((now_s - (cluster_time >> 32)) * 100), 0), 0x3FF)
    copied = Copied(generation=_generation(cluster_time, age))
    return ResumeToken.high_water_mark(cluster_time + 1).while_copying(copied)


def generation_before(place: ResumeToken) -> int:
    """At least the generation of each copy that whoever has come to this place has read."""
    return place.copied.generation if place.copied is not None else _generation(place.cluster_time, 0x3FF)


def _generation(cluster_time: int, age: int) -> int:
    return (cluster_time >> 32) << 20 | min(cluster_time & 0xFFFF_FFFF, 0x3FF) << 10 | age


def moment_of(raw: bytes) -> tuple[int, int]:
    """Cluster time and transaction index of an event, by its `_id`, of which nothing else is read. Raises
    `UnknownTokenLayout`."""
    try:
        head = unhexlify(raw[15 : 15 + 2 * _MOMENT_BYTES])
        if raw[4:11] != _DATA or head[0] != _TIMESTAMP:
            raise UnknownTokenLayout("the token does not begin with a cluster time")
        _, offset = _read_number(head, 9)
        _, offset = _read_number(head, offset)
        return int.from_bytes(head[1:9]), _read_number(head, offset)[0]
    except (HexError, IndexError):
        raise UnknownTokenLayout("the token is cut short") from None


def without_document(raw: bytes) -> bytes:
    """The token in the `_id` of a copied document (`{_data: …, snapshot: {_id: …, …}}`); `raw` itself if it is
    another one. Decodes nothing: an `_id` may have any size and depth."""
    if raw[4:11] != _DATA:
        return raw
    end = 15 + int.from_bytes(raw[11:15], "little")
    at = end + len(_SNAPSHOT)
    if raw[end:at] != _SNAPSHOT or int.from_bytes(raw[at : at + 4], "little") != len(raw) - at - 1:
        return raw
    content = raw[4:end] + b"\x00"
    return (len(content) + 4).to_bytes(4, "little") + content


def key_string(token: ResumeToken) -> bytes | None:
    """The bytes of `_data`, where `from_key_string` gives the very same token back; else None."""
    raw = token.raw
    try:
        data = unhexlify(raw[15:-2])
    except HexError:
        return None
    return data if _document(data) == raw else None


def packed(token: ResumeToken) -> bytes:
    """The document of any token, in little more than half its size: the length (2) of the bytes of `_data`, these, and
    the fields after it. The length is 0 before a document that has another form."""
    raw = token.raw
    end = 15 + int.from_bytes(raw[11:15], "little")
    try:
        data = unhexlify(raw[15 : end - 1])
    except HexError:
        data = b""
    fields = raw[end:-1]
    return len(data).to_bytes(2) + data + fields if _document(data, fields) == raw else b"\0\0" + raw


@dataclass(frozen=True, slots=True)
class TokenDescription:
    """The contents of a token, for people."""

    cluster_time_seconds: int
    cluster_time_increment: int
    time: str
    """The cluster time in ISO 8601, UTC."""
    token_type: str
    """`high-water mark` or `event`."""
    version: int
    transaction_index: int
    from_invalidate: bool
    collection_uuid: str | None = None
    event_identifier: dict[str, Any] | None = None
    """Version 1: the document key, or operation type and description; version 2: always with the operation
    type.

    Whole numbers are shown as integers whatever their type."""
    fragment: int | None = None
    """From 0, as MongoDB stores it; `splitEvent.fragment` counts from 1."""
    undecoded: str = ""
    """Hex of what could not be read."""


def describe(hex_or_raw: str | bytes) -> TokenDescription:
    """Reads a token given as the hex of `_data` or as its BSON document. Raises `UnknownTokenLayout`."""
    if isinstance(hex_or_raw, str):
        try:
            data = bytes.fromhex(hex_or_raw)
        except ValueError:
            raise UnknownTokenLayout("the token is not hexadecimal") from None
    else:
        data = _key_string(hex_or_raw)
    version, (cluster_time, token_type, txn_index, from_invalidate, tail) = _read_places(data)
    seconds, increment = cluster_time >> 32, cluster_time & 0xFFFF_FFFF
    collection_uuid, identifier, fragment, undecoded = _read_tail(tail)
    return TokenDescription(
        cluster_time_seconds=seconds,
        cluster_time_increment=increment,
        time=datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z"),
        token_type="event" if token_type == EVENT else "high-water mark",
        version=version,
        transaction_index=txn_index,
        from_invalidate=bool(from_invalidate),
        collection_uuid=collection_uuid,
        event_identifier=identifier,
        fragment=fragment,
        undecoded=undecoded.hex().upper(),
    )


def _read_tail(tail: bytes) -> tuple[str | None, dict[str, Any] | None, int | None, bytes]:
    collection_uuid = identifier = fragment = None
    reader = KeyStringReader(tail)
    read_to = 0
    try:
        while not reader.at_end:
            value = reader.read()
            if isinstance(value, UUID) and collection_uuid is None:
                collection_uuid = str(value)
            elif isinstance(value, dict) and identifier is None:
                identifier = value
            elif isinstance(value, int) and not isinstance(value, bool) and fragment is None:
                fragment = value
            elif value is not None:
                break
            read_to = reader.offset
    except ValueError:
        pass
    return collection_uuid, identifier, fragment, tail[read_to:]


def _fragment_bytes(tail: bytes) -> int:
    """The size of the fragment number at the end; 0 without one. A document key ends with NUL, and a small number does
    not."""
    if tail.endswith(bytes((_ZERO,))):
        return 1
    return 2 if tail[-2:-1] == bytes((_NUMBER_BASE + 1,)) and not tail.endswith(b"\0") else 0


def _identity(token: ResumeToken) -> tuple[bytes, int | None] | None:
    """What names a document's event in tokens of both versions, and the fragment; None where it cannot be told.

    Collection and document key, as bytes: decoded values are equal where MongoDB's are not."""
    tail = token.key[4].removesuffix(_ALL_FRAGMENTS)
    reader = KeyStringReader(tail)
    try:
        if not isinstance(reader.read(), UUID):
            return None
        begin = reader.offset
        if token.version == 2:
            fields = reader.raw_fields()
            document_key = fields.get("documentKey", b"")
        else:
            reader.read()
            document_key = tail[begin : reader.offset]
        fragment = None if reader.at_end else reader.read()
    except ValueError:
        return None
    if document_key[:1] != b"\x46" or not (fragment is None or isinstance(fragment, int)):
        return None
    return tail[:begin] + document_key, fragment


def _key_string(raw: bytes) -> bytes:
    # MongoDB writes `_data` first; this is the path of every batch.
    if raw[4:11] == _DATA:
        end = 14 + int.from_bytes(raw[11:15], "little")
        if raw[end:] == b"\x00\x00" and int.from_bytes(raw[:4], "little") == len(raw):
            try:
                return unhexlify(raw[15:end])
            except HexError:
                raise UnknownTokenLayout("_data is not hexadecimal") from None
    try:
        data = bson.decode(raw).get("_data")
    except Exception:  # noqa: BLE001 - bson raises several kinds, for any malformed bytes
        raise UnknownTokenLayout("the token is not a BSON document") from None
    if not isinstance(data, str):
        raise UnknownTokenLayout("_data is not a string")
    try:
        return unhexlify(data)
    except ValueError:
        raise UnknownTokenLayout("_data is not hexadecimal") from None


def _has_form_of_mongodb(raw: bytes) -> bool:
    document = bson.decode(raw)
    types = {name: type(value) for name, value in document.items()}
    return types in ({"_data": str}, {"_data": str, "_typeBits": bytes}) and bson.encode(document) == raw


def _document(data: bytes, fields: bytes = b"") -> bytes:
    """The document with this `_data`, and with these BSON elements after it."""
    text = hexlify(data).upper()
    return b"".join(
        (
            (len(text) + 17 + len(fields)).to_bytes(4, "little"),
            b"\x02_data\x00",
            (len(text) + 1).to_bytes(4, "little"),
            text,
            b"\x00",
            fields,
            b"\x00",
        )
    )


def _read_places(data: bytes) -> tuple[int, PlaceKey]:
    try:
        if data[0] != _TIMESTAMP or data[-1] != _END:
            raise UnknownTokenLayout("the token does not begin with a cluster time")
        version, offset = _read_number(data, 9)
        token_type, offset = _read_number(data, offset)
        txn_index, offset = _read_number(data, offset)
        flag = data[offset]
    except IndexError:
        raise UnknownTokenLayout("the token is cut short") from None
    if version not in _VERSIONS:
        raise UnknownTokenLayout("the token's version is not known")
    if flag not in (_FALSE, _TRUE):
        raise UnknownTokenLayout("the token does not say whether it comes from an invalidate")
    tail = data[offset + 1 : -1]
    if token_type == HIGH_WATER_MARK:
        if tail != _HIGH_WATER_MARK_TAILS[version]:
            raise UnknownTokenLayout("the high-water mark holds more than a time")
        tail = b""
    elif token_type != EVENT:
        raise UnknownTokenLayout("the token's type is not known")
    return version, (int.from_bytes(data[1:9]), token_type, txn_index, flag - _FALSE, tail)


def _read_number(data: bytes, offset: int) -> tuple[int, int]:
    kind = data[offset]
    if kind == _ZERO:
        return 0, offset + 1
    if not _NUMBER_BASE < kind <= _NUMBER_MAX:
        raise UnknownTokenLayout("a number of the token is of another type")
    end = offset + 1 + kind - _NUMBER_BASE
    if end >= len(data):
        raise IndexError
    value = int.from_bytes(data[offset + 1 : end])
    if value & 1:
        raise UnknownTokenLayout("a number of the token is not whole")
    return value >> 1, end
