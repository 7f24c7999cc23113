"""What a group has settled ahead of its position: everything up to a higher one, except holes. Pure.

A hole is the first unsettled event of a key, and what follows it in its key is not settled either. It is recognized by
a hash of the event's `_id`, so that a hole has the same size whatever the `_id`. Another event with that hash, however
unlikely, comes again; none is lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from feedmux_server.core.positions.resume_token import ResumeToken

HOLES_MAX: Final = 550
"""The most holes: they fit into a position with two tokens of usual size."""
MARK_BYTES: Final = 6
HOLE_BYTES: Final = MARK_BYTES + 1
_ATTEMPTS_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Ahead:
    """Events up to `high` are settled, but for the holes and what follows a hole in its key."""

    high: ResumeToken
    holes: Mapping[bytes, int]
    """By mark: how often the event was delivered, with the delivery that comes next."""

    def packed(self) -> bytes:
        return b"".join(mark + bytes((min(attempts, _ATTEMPTS_MAX),)) for mark, attempts in self.holes.items())


def unpacked(data: bytes) -> dict[bytes, int]:
    """The holes in `data`, whose length is a multiple of `HOLE_BYTES`."""
    holes = (data[at : at + HOLE_BYTES] for at in range(0, len(data), HOLE_BYTES))
    return {each[:MARK_BYTES]: max(1, each[MARK_BYTES]) for each in holes}


def mark_of(raw_id: bytes) -> bytes:
    """The mark of the event with this `_id`."""
    return blake2b(raw_id, digest_size=MARK_BYTES, person=b"feedmux-hole").digest()
