"""What taking from a feed returns: events, the end, or what the next event still needs. Pure."""

from dataclasses import dataclass

from feedmux_server.core.delivery.replay_buffer import ReplayBuffer
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.positions.resume_token import ResumeToken

BSON = "bson"
"""The format of events as MongoDB sent them; others are rendered from it."""


@dataclass(slots=True)
class Delivery:
    """Consecutive events of one stream, ready to be framed."""

    first_sequence: int
    count: int
    parts: tuple[bytes, ...]
    """The events' bytes in the session's format, as a message contains them. Empty after a message has taken them:
    their ring may have evicted them."""
    size: int
    """The events' own bytes, which credit and quotas count: BSON documents, or JSON texts in UTF-8."""
    wire_size: int
    """The bytes of `parts`. With JSON each text has its field's tag and length before it."""
    end: ResumeToken
    """The position after the last event."""
    read_time_s: float
    are_documents: bool = False
    """They are documents of a copy."""


@dataclass(frozen=True, slots=True)
class NeedsRender:
    """The next chunk is not rendered in the session's format yet."""

    chunk: Chunk
    ring: ReplayBuffer


@dataclass(frozen=True, slots=True)
class NeedsRoom:
    """The next event is larger than `Subscriber.event_max` allows now."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The feed has ended here: by an invalidate (error FEED_INVALIDATED), another error of MongoDB, or an event that
    cannot be rendered."""

    error: FeedmuxError
