"""What a group has settled ahead of its position: everything up to a higher one, except holes. Pure.

A hole is the first unsettled event of a key, and what follows it in its key is not settled either. It is recognized by
a hash of the event's `_id`, so that a hole has the same size whatever the `_id`. Another event with that hash, however
unlikely, comes again; none is lost.

MongoDB may not show a hole again: what `updateLookup` finds, an image that has expired, `$$NOW` and `$rand` differ at a
second read, and the pipeline or the grants filter by that. So a hole also has the time of its event, its index in a
transaction and a hash of its key (`Of`). From there on, what has such a key is not settled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

from feedmux_server.core.positions.resume_token import ResumeToken

HOLES_MAX: Final = 260
"""The most holes: they fit into a position with two tokens of usual size."""
MARK_BYTES: Final = 6
FORMER_HOLE_BYTES: Final = MARK_BYTES + 1
"""Of positions of earlier versions, whose holes have no `Of`."""
_SHORT_BYTES: Final = 2
_PART_BYTES: Final = 2
"""Of a time and an index: seconds before the higher position, the increment, and the index. Longer ago is as long ago
as can be, and larger numbers are the largest: so a hole is never later than it was, and what lies between comes again.
"""
_EXACT_S: Final = 0x8000
_STEP_S: Final = 64
"""From 9 hours before the higher position on, in such steps: so 24 days fit. A key may wait for as long as the oplog
is."""
HOLE_BYTES: Final = FORMER_HOLE_BYTES + _SHORT_BYTES + 3 * _PART_BYTES
_ATTEMPTS_MAX: Final = 255
_PART_MAX: Final = 0xFFFF


class Of(NamedTuple):
    """Of which event a hole is, in case that it is not shown again."""

    key: bytes
    """`short_of` its key."""
    time: int
    """Its cluster time, seconds << 32 | increment, or an earlier one."""
    operation: int
    """In its transaction, or an earlier one."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Events up to `high` are settled, but for the holes and what follows a hole in its key."""

    high: ResumeToken
    holes: Mapping[bytes, int]
    """By mark: how often the event was delivered, with the delivery that comes next."""
    of: Mapping[bytes, Of] = field(default_factory=dict)
    """By mark. Not of holes that an earlier version has stored."""

    @property
    def is_former(self) -> bool:
        """Whether it is packed as earlier versions pack it."""
        return not self.holes.keys() <= self.of.keys()

    def packed(self) -> bytes:
        former = ((mark, mark + bytes((min(attempts, _ATTEMPTS_MAX),))) for mark, attempts in self.holes.items())
        if self.is_former:
            return b"".join(hole for _, hole in former)
        return b"".join(hole + self._packed(self.of[mark]) for mark, hole in former)

    def _packed(self, of: Of) -> bytes:
        seconds = max((self.high.cluster_time >> 32) - (of.time >> 32), 0)
        steps = max(-(-(seconds - _EXACT_S) // _STEP_S), 0)
        parts = (min(seconds, _EXACT_S) + steps, of.time & 0xFFFF_FFFF, of.operation)
        return of.key + b"".join(min(part, _PART_MAX).to_bytes(_PART_BYTES) for part in parts)


def unpacked(high: ResumeToken, data: bytes, size: int) -> Ahead:
    """From holes of `size` bytes, `HOLE_BYTES` or `FORMER_HOLE_BYTES`; the length of `data` is a multiple of it."""
    holes, of = dict[bytes, int](), dict[bytes, Of]()
    for each in (data[at : at + size] for at in range(0, len(data), size)):
        mark = each[:MARK_BYTES]
        holes[mark] = max(1, each[MARK_BYTES])
        if size == HOLE_BYTES:
            before, increment, index = (int.from_bytes(each[at : at + 2]) for at in (9, 11, 13))
            before_s = min(before, _EXACT_S) + _STEP_S * max(before - _EXACT_S, 0)
            seconds = (high.cluster_time >> 32) - before_s
            time = 0 if before == _PART_MAX or seconds < 0 else seconds << 32 | increment
            of[mark] = Of(each[7:9], time, index)
    return Ahead(high, holes, of)


def short_of(name: bytes | None) -> bytes:
    """A short hash of a key. Another key with it comes again, too, after a hole that is not shown again."""
    return (crc32(name or b"") & _PART_MAX).to_bytes(_SHORT_BYTES)


def mark_of(raw_id: bytes) -> bytes:
    """The mark of the event with this `_id`."""
    return blake2b(raw_id, digest_size=MARK_BYTES, person=b"feedmux-hole").digest()
