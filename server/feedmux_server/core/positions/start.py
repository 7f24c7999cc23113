"""Where a feed is asked to begin, before MongoDB's clock or oplog is consulted."""

from dataclasses import dataclass
from enum import StrEnum


class StartKind(StrEnum):
    LATEST = "latest"
    EARLIEST = "earliest"
    POSITION = "position"
    RESUME_AFTER = "resume_after"
    START_AFTER = "start_after"
    OPERATION_TIME = "start_at_operation_time"
    TIME = "time"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class Start:
    kind: StartKind = StartKind.LATEST
    data: bytes = b""
    """A position, or the BSON document of a native resume token."""
    time: int = 0
    """Cluster time, seconds << 32 | increment; a wall-clock time has increment 0."""
