"""feedmux's positions: opaque bytes that name a place in a feed of one tenant, source and scope.

Clients store them as they are. A position that is damaged, of another version, or of another tenant, source
or scope is refused, never read as another place. It serves every feed of its scope; the stream key in it
says whether MongoDB can be asked to resume after the token, or whether the feed has changed since.
A start at an operation time is the high-water mark of that time.

Layout: version, flags, fingerprint (8), stream key (8), token, CRC-32 of all before it (4, big endian).
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from zlib import crc32

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.resume_token import ResumeToken, UnknownTokenLayout, key_string

POSITION_BYTES_MAX: Final = 4096
_VERSION: Final = 0xF1
_FLAG_COMPACT: Final = 0x01
_HEAD_BYTES: Final = 18
_CHECKSUM_BYTES: Final = 4
_PART_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Position:
    scope_fingerprint: bytes
    stream_key: bytes
    """`StreamKey.short` of the feed that it came from."""
    token: ResumeToken


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

    __slots__ = ("_compact", "_plain")

    def __init__(self, scope_fingerprint: bytes, stream_key: bytes) -> None:
        if len(scope_fingerprint) != _PART_BYTES or len(stream_key) != _PART_BYTES:
            raise ValueError("fingerprint and stream key are 8 bytes each")
        self._compact = bytes((_VERSION, _FLAG_COMPACT)) + scope_fingerprint + stream_key
        self._plain = bytes((_VERSION, 0)) + scope_fingerprint + stream_key

    def encode(self, token: ResumeToken) -> bytes:
        """At most `POSITION_BYTES_MAX` bytes.

        A token too large for that (an `_id` of kilobytes) gives way to the high-water mark of its cluster
        time, which lies before it: what is at that time comes again, and nothing is lost.
        """
        data = key_string(token)
        content = self._plain + token.raw if data is None else self._compact + data
        if len(content) > POSITION_BYTES_MAX - _CHECKSUM_BYTES:
            return self.encode(ResumeToken.high_water_mark(token.cluster_time, token.version))
        return content + crc32(content).to_bytes(_CHECKSUM_BYTES)


def encode_position(position: Position) -> bytes:
    return PositionEncoder(position.scope_fingerprint, position.stream_key).encode(position.token)


def decode_position(data: bytes, fingerprint: bytes) -> Position:
    """Raises FeedmuxError: POSITION_INVALID, or POSITION_FOREIGN where the fingerprint is another."""
    if not data:
        raise _invalid("the position is empty")
    if len(data) > POSITION_BYTES_MAX:
        raise _invalid(f"the position is longer than {POSITION_BYTES_MAX} bytes")
    if data[0] != _VERSION:
        raise _invalid("the position is not one of feedmux, or of a version that this server does not know")
    if len(data) <= _HEAD_BYTES + _CHECKSUM_BYTES:
        raise _invalid("the position is cut short")
    content = data[:-_CHECKSUM_BYTES]
    if crc32(content) != int.from_bytes(data[-_CHECKSUM_BYTES:]):
        raise _invalid("the position is damaged: its checksum does not fit")
    if data[1] & ~_FLAG_COMPACT:
        raise _invalid("the position has flags that this server does not know")
    if content[2:10] != fingerprint:
        raise FeedmuxError(ErrorReason.POSITION_FOREIGN, "the position belongs to another tenant, source or scope")
    read = ResumeToken.from_key_string if data[1] & _FLAG_COMPACT else ResumeToken.decode
    try:
        token = read(content[_HEAD_BYTES:])
    except UnknownTokenLayout:
        raise _invalid("the position holds a resume token that this server cannot read") from None
    return Position(content[2:10], content[10:18], token)


def _invalid(message: str) -> FeedmuxError:
    return FeedmuxError(ErrorReason.POSITION_INVALID, message)
