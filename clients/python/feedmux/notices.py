"""Notices: what a session reports besides events. Values only; sessions deliver them in order."""

from dataclasses import dataclass

from feedmux.errors import FeedmuxError
from feedmux.feeds import SnapshotStatus


@dataclass(frozen=True, slots=True)
class Draining:
    """The server shuts down within `deadline_s` seconds. The session reconnects by itself."""

    deadline_s: float
    position: bytes


@dataclass(frozen=True, slots=True)
class Rewound:
    """The session begins before events that were already delivered; they are delivered again.

    Cluster times are (seconds, increment).
    """

    begins_at: tuple[int, int]
    had_reached: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Another session, or a seek, moved the stored position forward. The events in between are not delivered by this
    session.

    Cluster times are (seconds, increment); the two positions correspond to them. The first is empty if the session was
    open when a seek moved it, and the last acked event was in the middle of a batch.
    """

    had_reached: tuple[int, int]
    begins_at: tuple[int, int]
    had_reached_position: bytes
    begins_at_position: bytes


@dataclass(frozen=True, slots=True)
class HistoryAtRisk:
    """The position stays in MongoDB's oplog for `remaining_s` more seconds at the oplog's present growth rate."""

    remaining_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Events between the two cluster times are lost. After a restore of MongoDB (`reason` TIMELINE_FORKED), the second
    is earlier. All available events follow, or with `on_history_lost="snapshot"` a copy of the existing documents."""

    after: tuple[int, int]
    before: tuple[int, int]
    reason: str


@dataclass(frozen=True, slots=True)
class Degraded:
    """`source` (MongoDB) or `state` (Redis) is `unavailable`, or available again. The server keeps trying."""

    dependency: str
    unavailable: bool


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """The server sends nothing more until some of these `events` are acknowledged."""

    events: int


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """How far the copy of existing documents is; at most every five seconds, while documents come."""

    status: SnapshotStatus


@dataclass(frozen=True, slots=True)
class SnapshotComplete:
    """The copy of existing documents is complete: every event after this is a change.

    `documents` counts the documents of the copy. After an interruption, some may count twice. A program that keeps what
    it has deletes now what it has applied with a lower `generation` (`Batch.generation`): it was deleted before the
    copy began. After an interruption the notice may come again, until an event after it is acknowledged.
    """

    documents: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The client lost its connection to the server with `error`, and tries again in `retry_in_s` seconds."""

    error: FeedmuxError
    retry_in_s: float


Notice = (
    Draining
    | Rewound
    | Skipped
    | HistoryAtRisk
    | Gap
    | Degraded
    | Unacknowledged
    | SnapshotProgress
    | SnapshotComplete
    | Disconnected
)


def topic(notice: Notice) -> object:
    """Return what is equal for notices of which an unread one is replaced by a newer one, with no event in between:
    a session that nobody reads would collect them for as long as an outage lasts. None: each of them counts."""
    match notice:
        case Disconnected() | Draining() | HistoryAtRisk() | Unacknowledged():
            return type(notice)
        case Degraded():
            return notice
        case _:
            return None
