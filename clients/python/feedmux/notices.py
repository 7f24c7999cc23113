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


Notice = Draining | Rewound | HistoryAtRisk | Gap | Degraded | Disconnected
