"""feedmux's positions: opaque bytes that name a point in a feed of one tenant, source and scope.

Clients store them as they are. A position is authenticated by a key of the deployment (`core.positions.position_keys`):
one that is damaged, forged, of another version, or of another tenant, source or scope is rejected, never read as
another point. It serves every feed of its scope; the stream key and the flags in it say whether MongoDB can be asked to
resume after the token, must judge it first, or is to be asked for its cluster time. A start at an operation time is the
high-water mark of that time. Of a long token, a position contains a summary (`ResumeToken.digest`).

Layout: version, flags, key id (4), fingerprint (8), stream key (8), token, MAC of all before it (16). Within a copy of
existing documents, the token has its length (2) before it, and after it the number of copied documents (8), the
generation (8), in a copy of several collections the namespace with its length (2) before it, and the last `_id`. After
a copy whose end the client may not have noticed, the number and the generation are before the token. With what a group
has settled ahead (`core.positions.ahead`), the token and the higher one have their lengths (2) before them, and the
holes follow: mark (6), attempts (1), hash of the key (2), of the time the seconds (2) before that of the higher token,
those above 32,768 in steps of 64, and the increment (2), and the index in the transaction (2); the last four came
later, with a flag of their own. There both tokens are packed (`resume_token.packed`) unless both are compact. Who does
not read for the group begins at the token. By the flags of such positions, servers that do not know them reject them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.ahead import FORMER_HOLE_BYTES, HOLE_BYTES, HOLES_MAX, Ahead, unpacked
from feedmux_server.core.positions.position_keys import KEY_ID_BYTES, MAC_BYTES, PositionKey, PositionKeys
from feedmux_server.core.positions.resume_token import (
    WHOLE_BYTES_MAX,
    Copied,
    Given,
    ResumeToken,
    UnknownTokenLayout,
    key_string,
    packed,
)

POSITION_BYTES_MAX: Final = 4096
COPIED_BYTES_MAX: Final = 2048
"""The most bytes of `Copied.up_to` in a position."""
_VERSION: Final = 0xF2
_FLAG_COMPACT: Final = 0x01
_FLAG_UNJUDGED: Final = 0x02
_FLAG_AS_TIME: Final = 0x04
_FLAG_COPYING: Final = 0x08
_FLAG_AHEAD: Final = 0x10
_FLAG_NAMESPACE: Final = 0x20
_FLAG_COMPLETED: Final = 0x40
_FLAG_GENERATION: Final = 0x80
"""Positions within copies were first without a generation."""
_FORMS: Final = _FLAG_COPYING | _FLAG_AHEAD | _FLAG_COMPLETED
"""At most one of these."""
_OF_COPY: Final = _FLAG_NAMESPACE | _FLAG_GENERATION
"""Only with `_FLAG_COPYING`, but for one."""
_FLAG_KEYS: Final = _FLAG_NAMESPACE
"""With `_FLAG_AHEAD`: the holes say of which keys they are."""
_FLAGS_OF: Final = {Given.BY_MONGODB: 0, Given.BY_CLIENT: _FLAG_UNJUDGED, Given.AS_TIME: _FLAG_AS_TIME}
_GIVEN_OF: Final = {flags: given for given, flags in _FLAGS_OF.items()}
_PART_BYTES: Final = 8
_COUNT_BYTES: Final = 16
"""The number of copied documents, and the generation."""
_KEY_ID: Final = slice(2, 2 + KEY_ID_BYTES)
_FINGERPRINT: Final = slice(_KEY_ID.stop, _KEY_ID.stop + _PART_BYTES)
_STREAM_KEY: Final = slice(_FINGERPRINT.stop, _FINGERPRINT.stop + _PART_BYTES)
_HEAD_BYTES: Final = _STREAM_KEY.stop
_AHEAD_BYTES_MAX: Final = POSITION_BYTES_MAX - _HEAD_BYTES - MAC_BYTES - 4
"""Of two packed tokens and the holes."""
_PACKED_BYTES_MAX: Final = WHOLE_BYTES_MAX + 2


@dataclass(frozen=True, slots=True)
class Position:
    scope_fingerprint: bytes
    stream_key: bytes
    """`StreamKey.short` of the feed that it came from."""
    token: ResumeToken
    ahead: Ahead | None = None
    completed: Copied | None = None
    """The copy before this position, whose end the client may not have noticed."""


def scope_fingerprint(tenant: str, source_id: str, namespace: str) -> bytes:
    """8 bytes. `source_id` is the replica set's or cluster's own id, so that a renamed source keeps its
    positions."""
    digest = blake2b(digest_size=_PART_BYTES, person=b"feedmux-scope")
    for part in (tenant, source_id, namespace):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(4))
        digest.update(encoded)
    return digest.digest()


class PositionEncoder:
    """Encodes the positions of one feed of one tenant; `encode` runs once for each delivered batch."""

    __slots__ = ("_high_bytes", "_key", "_keys", "_last", "_scope", "_usual_head")

    def __init__(self, keys: PositionKeys, scope_fingerprint: bytes, stream_key: bytes) -> None:
        if len(scope_fingerprint) != _PART_BYTES or len(stream_key) != _PART_BYTES:
            raise ValueError("fingerprint and stream key are 8 bytes each")
        self._keys = keys
        self._scope = scope_fingerprint + stream_key
        self._key: PositionKey | None = None
        self._usual_head = b""
        """The head of a compact position that came from MongoDB."""
        self._last: tuple[ResumeToken, bytes] | None = None
        """An idle feed repeats its position with each heartbeat, and an acknowledgement that of its batch."""
        self._high_bytes = 0
        """The length of the last higher token of `encode_ahead`: the next one is usually as long."""

    def encode(self, token: ResumeToken) -> bytes:
        """At most `POSITION_BYTES_MAX` bytes."""
        key = self._keys.signing
        if key is not self._key:
            self._key, self._usual_head, self._last = key, self._head(key, _FLAG_COMPACT), None
        if self._last is not None and self._last[0] is token:
            return self._last[1]
        position = self._encode(token, key)
        self._last = token, position
        return position

    def encode_completed(self, token: ResumeToken, completed: Copied) -> bytes:
        """The position after a copy whose end the client may not have noticed."""
        token = token.as_summary()
        data = key_string(token)
        flags = _FLAGS_OF[token.given] | _FLAG_COMPLETED | (0 if data is None else _FLAG_COMPACT)
        key = self._keys.signing
        content = self._head(key, flags) + _count(completed) + (token.raw if data is None else data)
        return content + key.sign(content)

    def encode_ahead(self, token: ResumeToken, ahead_of: Callable[[int], Ahead | None]) -> bytes:
        """The position of a group with what is settled ahead of it. `ahead_of` finds that with so many holes at most;
        what does not fit is left out."""
        key, token = self._keys.signing, token.as_summary()
        if token.copied is not None:
            return self.encode(token)
        whole, low = token, packed(token)
        # Fewer holes, and another higher token with them, if that was longer than the last one; then for the longest.
        for at_least in (0, 0, _PACKED_BYTES_MAX):
            self._high_bytes = max(self._high_bytes, at_least)
            if len(low) + self._high_bytes + HOLE_BYTES > _AHEAD_BYTES_MAX:
                # Two long tokens. Of the events since this time, what is ahead says which are settled.
                token = token.before_time()
                low = packed(token)
            room = _AHEAD_BYTES_MAX - len(low)
            ahead = ahead_of(min(HOLES_MAX, (room - self._high_bytes) // HOLE_BYTES))
            if ahead is None:
                self._high_bytes = 0
                break
            higher = ahead.high.as_summary()
            high = packed(higher)
            self._high_bytes = len(high)
            if len(high) + len(holes := ahead.packed()) <= room:
                flags = _FLAGS_OF[token.given] | _FLAG_AHEAD | (0 if ahead.is_former else _FLAG_KEYS)
                short, short_high = key_string(token), key_string(higher)
                if short is not None and short_high is not None:
                    flags, low, high = flags | _FLAG_COMPACT, short, short_high
                tokens = len(low).to_bytes(2) + low + len(high).to_bytes(2) + high
                content = self._head(key, flags) + tokens + holes
                return content + key.sign(content)
        return self.encode(whole)

    def _encode(self, token: ResumeToken, key: PositionKey) -> bytes:
        token = token.as_summary()
        data = key_string(token)
        if token.copied is not None:
            return self._while_copying(token, token.copied, data, key)
        if data is not None and token.given is Given.BY_MONGODB:
            content = self._usual_head + data
        else:
            flags = _FLAGS_OF[token.given] | (0 if data is None else _FLAG_COMPACT)
            content = self._head(key, flags) + (token.raw if data is None else data)
        return content + key.sign(content)

    def _while_copying(self, token: ResumeToken, copied: Copied, data: bytes | None, key: PositionKey) -> bytes:
        part = token.raw if data is None else data
        namespace = f"{copied.database}.{copied.collection}".encode() if copied.collection else b""
        named = len(namespace).to_bytes(2) + namespace if namespace else b""
        count = _count(copied) if copied.generation else copied.documents.to_bytes(8)
        end = count + named + copied.up_to
        if _HEAD_BYTES + 2 + len(part) + len(end) + MAC_BYTES > POSITION_BYTES_MAX:
            # The token of a document with a large `_id`: the events of its time come again.
            token = token.before_time()
            data = part = key_string(token) or token.raw
        flags = _FLAGS_OF[token.given] | _FLAG_COPYING | (0 if data is None else _FLAG_COMPACT)
        flags |= (_FLAG_NAMESPACE if namespace else 0) | (_FLAG_GENERATION if copied.generation else 0)
        content = self._head(key, flags) + len(part).to_bytes(2) + part + end
        return content + key.sign(content)

    def _head(self, key: PositionKey, flags: int) -> bytes:
        return bytes((_VERSION, flags)) + key.id + self._scope


def _count(copied: Copied) -> bytes:
    return copied.documents.to_bytes(8) + copied.generation.to_bytes(8)


def encode_position(position: Position, keys: PositionKeys) -> bytes:
    return PositionEncoder(keys, position.scope_fingerprint, position.stream_key).encode(position.token)


def decode_position(data: bytes, fingerprint: bytes, keys: PositionKeys) -> Position:
    """Raises FeedmuxError: POSITION_INVALID, POSITION_FOREIGN where the fingerprint is another, or STATE_UNAVAILABLE
    while the keys are not known."""
    content = _content(data)
    key = keys.verifying(data[_KEY_ID])
    if key is None:
        raise _invalid("the position was not made by this deployment, or was made with a key that it no longer has")
    if not key.verifies(content, data[-MAC_BYTES:]):
        raise _invalid("the position is damaged or forged")
    if data[_FINGERPRINT] != fingerprint:
        raise FeedmuxError(ErrorReason.POSITION_FOREIGN, "the position belongs to another tenant, source or scope")
    return _read(content)


def as_shown(data: bytes, keys: PositionKeys) -> bytes:
    """A stored position as clients see it: only where it is. One that this deployment has not made stays as it is."""
    if len(data) < 2 or not data[1] & (_FLAG_AHEAD | _FLAG_COMPLETED):
        return data
    try:
        position = decode_position(data, data[_FINGERPRINT], keys)
    except FeedmuxError:
        return data
    return PositionEncoder(keys, position.scope_fingerprint, position.stream_key).encode(position.token)


def is_of_scope(data: bytes, fingerprint: bytes) -> bool:
    """Whether a stored position is of the scope with this fingerprint. True for one that cannot be read, of which
    nobody knows."""
    try:
        return inspect_position(data).scope_fingerprint == fingerprint
    except FeedmuxError:
        return True  # a session that opens there gets the error


def copied_of(data: bytes) -> ResumeToken | None:
    """The token of a stored position, if the position is within a copy."""
    if len(data) < 2 or not data[1] & _FLAG_COPYING:
        return None
    try:
        return inspect_position(data).token
    except FeedmuxError:
        return None  # a session that opens there gets the error


def inspect_position(data: bytes) -> Position:
    """What a position says, without a key: nothing shows that it was not forged. Raises POSITION_INVALID."""
    return _read(_content(data))


def _content(data: bytes) -> bytes:
    """All but the MAC, of what may be a position. Raises POSITION_INVALID."""
    if not data:
        raise _invalid("the position is empty")
    if len(data) > POSITION_BYTES_MAX:
        raise _invalid(f"the position is longer than {POSITION_BYTES_MAX} bytes")
    if data[0] != _VERSION:
        raise _invalid("the position is not from feedmux, or its version is unknown to this server")
    if len(data) <= _HEAD_BYTES + MAC_BYTES:
        raise _invalid("the position is cut short")
    return data[:-MAC_BYTES]


def _read(content: bytes) -> Position:
    flags = content[1]
    given = _GIVEN_OF.get(flags & ~_FLAG_COMPACT & ~_FORMS & ~_OF_COPY)
    allowed = _OF_COPY if flags & _FLAG_COPYING else _FLAG_KEYS if flags & _FLAG_AHEAD else 0
    if given is None or (flags & _FORMS).bit_count() > 1 or flags & _OF_COPY & ~allowed:
        raise _invalid("the position has flags that this server does not know")
    read = ResumeToken.from_key_string if flags & _FLAG_COMPACT else ResumeToken.from_position
    data, copied, completed, high, holes, hole_bytes = content[_HEAD_BYTES:], None, None, b"", b"", 0
    if flags & _FLAG_COPYING:
        end = 2 + int.from_bytes(data[:2])
        copied = _copied(data[end:], flags)
        data = data[2:end]
    if flags & _FLAG_COMPLETED:
        completed = _counted(data)
        data = data[_COUNT_BYTES:]
    if flags & _FLAG_AHEAD:
        hole_bytes = HOLE_BYTES if flags & _FLAG_KEYS else FORMER_HOLE_BYTES
        data, high, holes = _parts(data, hole_bytes)
        read = read if flags & _FLAG_COMPACT else ResumeToken.from_packed
    try:
        token = read(data)
        ahead = unpacked(read(high), holes, hole_bytes) if high else None
    except UnknownTokenLayout:
        raise _invalid("the position holds a resume token that this server cannot read") from None
    if copied is not None:
        token = token.while_copying(copied)
    return Position(content[_FINGERPRINT], content[_STREAM_KEY], token.given_as(given), ahead, completed)


def _counted(data: bytes) -> Copied:
    """What `_count` has written. Raises POSITION_INVALID."""
    if len(data) < _COUNT_BYTES:
        raise _invalid("the position is cut short")
    return Copied(documents=int.from_bytes(data[:8]), generation=int.from_bytes(data[8:_COUNT_BYTES]))


def _copied(data: bytes, flags: int) -> Copied:
    """Raises POSITION_INVALID."""
    if flags & _FLAG_GENERATION:
        copied, rest = _counted(data), data[_COUNT_BYTES:]
    elif len(data) < 8:
        raise _invalid("the position is cut short")
    else:
        copied, rest = Copied(documents=int.from_bytes(data[:8])), data[8:]
    if flags & _FLAG_NAMESPACE:
        end = 2 + int.from_bytes(rest[:2])
        database, _, collection = rest[2:end].decode("utf-8", "replace").partition(".")
        if end > len(rest) or not database or not collection:
            raise _invalid("the position is cut short")
        copied, rest = replace(copied, database=database, collection=collection), rest[end:]
    return replace(copied, up_to=rest)


def _parts(data: bytes, hole_bytes: int) -> tuple[bytes, bytes, bytes]:
    """The token, the higher token and the holes. Raises POSITION_INVALID."""
    end = 2 + int.from_bytes(data[:2])
    high_end = end + 2 + int.from_bytes(data[end : end + 2])
    if high_end > len(data) or high_end == end + 2 or (len(data) - high_end) % hole_bytes:
        raise _invalid("the position is cut short")
    return data[2:end], data[end + 2 : high_end], data[high_end:]


def _invalid(message: str) -> FeedmuxError:
    return FeedmuxError(ErrorReason.POSITION_INVALID, message)
