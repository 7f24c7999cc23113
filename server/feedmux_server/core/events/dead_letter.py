"""A dead letter: an event that a group has set aside, and what is known of its deliveries. Pure.

`sessions` makes letters, `source/letters.py` stores them, `rpc` shows them.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from feedmux_server.core.events.bson_walk import DOCUMENT, find, length_at
from feedmux_server.core.events.chunk import FIELDS_SEARCHED, event_id
from feedmux_server.core.positions.resume_token import ResumeToken

ID_BYTES: Final = 16
KEY_BYTES_MAX: Final = 1024
"""A longer `documentKey` is in the event only: MongoDB indexes the key."""
_TAIL_BYTES_MAX: Final = 128
"""How much of the end of a token is compared: MongoDB indexes the place."""
REASONS_MAX: Final = 5
"""The last reasons are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """What is stored of an event."""

    tenant: str
    subscription: str
    id: bytes
    """A digest of the event's `_id` and the stream key: an event that is set aside twice is stored once, and as another
    feed or other grants show it, it is another letter."""
    stream_key: bytes
    """The digest of the feed, with its grants, that delivered the event."""
    key: bytes
    """The `documentKey`, BSON; empty if there is none, or if it is longer than KEY_BYTES_MAX."""
    group_key: bytes
    """The key by which the group orders the event, as `event_keys.keys_of` gives it; the id for an event without."""
    place: str
    """Sorts the letters of a group key as MongoDB has sent their events."""
    event_bytes: int
    attempts: int
    reasons: tuple[str, ...]
    member: str
    """The instance id of the member that had the event last."""
    cluster_time: int
    """0: not known."""
    failed_ms: int
    expires_ms: int = 0
    failures: int = 0
    """How often it has failed since it is delivered again."""
    losses: int = 0
    """Of these, by the loss of the member that had it first in a run."""
    event: bytes = b""
    """The event as MongoDB sent it; empty where it was not asked for."""


def dead_letter(
    event: bytes,
    *,
    tenant: str,
    subscription: str,
    stream_key: bytes,
    attempts: int,
    reasons: tuple[str, ...],
    member: str,
    cluster_time: int,
    now_s: float,
    group_key: bytes | None = None,
    place: str = "",
) -> DeadLetter:
    """The letter of an event."""
    id_ = blake2b(stream_key + event_id(event, 0), digest_size=ID_BYTES).digest()
    at = find(event, 0, b"documentKey", DOCUMENT, FIELDS_SEARCHED)
    key = b"" if at is None else event[at : at + length_at(event, at)[0]]
    return DeadLetter(
        tenant=tenant,
        subscription=subscription,
        id=id_,
        stream_key=stream_key,
        key=key if len(key) <= KEY_BYTES_MAX else b"",
        group_key=id_ if group_key is None else group_key,
        place=place,
        event_bytes=len(event),
        attempts=attempts,
        reasons=reasons[-REASONS_MAX:],
        member=member,
        cluster_time=cluster_time,
        # A clock that was set back must not make a letter that expires at once.
        failed_ms=int(max(now_s, cluster_time >> 32) * 1000),
        event=event,
    )


def place_of(token: ResumeToken) -> str:
    """`DeadLetter.place` of an event. Two events of one `_id` may agree in all but the end of their tokens: an update
    of the shard key that moves the document to another shard is a delete and an insert. Earlier versions left the end
    out."""
    cluster_time, kind, transaction, from_invalidate, tail = token.key
    return f"{cluster_time:016x}{kind:02x}{transaction:016x}{from_invalidate}{tail[:_TAIL_BYTES_MAX].hex()}"
