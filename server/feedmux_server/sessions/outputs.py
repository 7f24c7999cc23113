"""What a session sends: deliveries, and marks between them (Progress, Committed and notices)."""

from dataclasses import dataclass

from feedmux_server.core.delivery.copy_progress import CopyStatus
from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.positions.resume_token import ResumeToken


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """Everything up to `place` was delivered."""

    place: ResumeToken


@dataclass(frozen=True, slots=True)
class CommittedMark:
    sequence: int
    position: bytes


@dataclass(frozen=True, slots=True)
class DrainingMark:
    deadline_s: float
    place: ResumeToken


@dataclass(frozen=True, slots=True)
class DegradedMark:
    dependency: str
    unavailable: bool


@dataclass(frozen=True, slots=True)
class RewoundMark:
    begins: ResumeToken
    reached: int
    """Cluster time that an earlier session had reached."""


@dataclass(frozen=True, slots=True)
class SkippedMark:
    acked: ResumeToken
    """How far this client had acknowledged."""
    begins: ResumeToken


@dataclass(frozen=True, slots=True)
class GapMark:
    begins: ResumeToken
    ends: ResumeToken
    reason: str


@dataclass(frozen=True, slots=True)
class HistoryAtRiskMark:
    """The session's position leaves the oplog in `remaining_s`."""

    remaining_s: float


@dataclass(frozen=True, slots=True)
class UnacknowledgedMark:
    """Delivery waits for acknowledgements of this many events."""

    events: int


@dataclass(frozen=True, slots=True)
class CopyMark:
    """How far the copy of existing documents is, or that it is complete."""

    status: CopyStatus


Output = (
    Delivery
    | ProgressMark
    | CommittedMark
    | DrainingMark
    | DegradedMark
    | RewoundMark
    | SkippedMark
    | GapMark
    | HistoryAtRiskMark
    | UnacknowledgedMark
    | CopyMark
)
