"""What a session has to say besides events. Values only; `wire` makes them, sessions hand them out in order."""

from dataclasses import dataclass

from feedmux.errors import FeedmuxError


@dataclass(frozen=True, slots=True)
class Draining:
    """The server goes away within `deadline_s` seconds. The session reconnects by itself."""

    deadline_s: float
    position: bytes


@dataclass(frozen=True, slots=True)
class Rewound:
    """The session begins behind events that were delivered before; they come again.

    Cluster times as (seconds, increment).
    """

    begins_at: tuple[int, int]
    had_reached: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Another session, or a seek, moved the stored position on while this session was away: what lies between is not
    handed out here.

    Cluster times as (seconds, increment), and the same places as positions.
    """

    had_reached: tuple[int, int]
    begins_at: tuple[int, int]
    had_reached_position: bytes
    begins_at_position: bytes


@dataclass(frozen=True, slots=True)
class HistoryAtRisk:
    """The position stays in MongoDB's oplog for `remaining_s` more seconds at its present rate."""

    remaining_s: float


@dataclass(frozen=True, slots=True)
class Gap:
    """Events between the two cluster times are lost. Only under `on_history_lost="earliest"`."""

    after: tuple[int, int]
    before: tuple[int, int]
    reason: str


@dataclass(frozen=True, slots=True)
class Degraded:
    """`source` (MongoDB) or `state` (Redis) is away, or back. The server keeps trying."""

    dependency: str
    away: bool


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The client lost the server for `error` and tries again in `retry_in_s` seconds."""

    error: FeedmuxError
    retry_in_s: float


Notice = Draining | Rewound | Skipped | HistoryAtRisk | Gap | Degraded | Disconnected
