"""How far one session's copy of existing documents is, and how fast it goes. Pure.

A session begins with the documents of its position and a rate that is not known: what an earlier session has copied
says nothing about the speed of this one. `sessions.session` counts here what it sends.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from feedmux_server.core.positions.resume_token import Copied, ResumeToken

RATE_OF_S: Final = 60.0
"""The rate is that of this last time."""
RATE_AFTER_S: Final = 2.0
"""A shorter time has no rate: one batch more or less would double it."""
REMAINING_MAX_S: Final = 365 * 86_400.0
"""One document a minute of ten billion would take longer than a protobuf Duration can say."""
NOTICE_EVERY_S: Final = 5.0
STALLED_AFTER_S: Final = 60.0


class CopyState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    """For the client."""
    STALLED = "stalled"
    """No document came for `STALLED_AFTER_S`, although the client can take some."""


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """How far a copy is. What is not known is 0, empty or None."""

    running: bool
    documents: int
    namespace: str
    bytes: int = 0
    documents_estimated: int = 0
    remaining_s: float | None = None
    read_time: int = 0
    """The cluster time as of which the last document was read."""
    generation: int = 0
    """`Copied.generation`."""


def completed_status(completed: Copied, namespace: str) -> CopyStatus:
    """The end of a copy that an earlier session has brought to its end."""
    return CopyStatus(False, completed.documents, namespace, generation=completed.generation)


def status_at(place: ResumeToken, namespace: str) -> CopyStatus | None:
    """What a position says of the copy that it is within; None outside a copy. `namespace`: that of the feed."""
    copied = place.copied
    if copied is None:
        return None
    is_after_document = place.is_high_water_mark and copied.documents > 0
    if copied.collection:
        namespace = f"{copied.database}.{copied.collection}"
    read_time = place.cluster_time - 1 if is_after_document else 0
    return CopyStatus(True, copied.documents, namespace, read_time=read_time, generation=copied.generation)


class CopyProgress:
    """The documents that one session has sent."""

    __slots__ = (
        "_noticed_s", "_read_time", "_samples", "bytes", "documents", "documents_estimated", "generation", "sent_s",
    )  # fmt: skip

    def __init__(self, begun: CopyStatus, now_s: float) -> None:
        self.documents = begun.documents
        """With those of earlier sessions."""
        self.generation = begun.generation
        self.bytes = 0
        """Of the events of documents in this session."""
        self.documents_estimated = 0
        """The documents of the collection; 0: not known."""
        self.sent_s = now_s
        """When the last documents were sent, or the session began."""
        self._read_time = begun.read_time
        self._noticed_s = now_s
        self._samples = deque([(now_s, begun.documents)])
        """How far the copy was at some times, one a second at most, the oldest first."""

    def sent(self, end: ResumeToken, size: int, now_s: float) -> bool:
        """Note that documents up to `end`, of `size` bytes, were sent. Returns whether a notice is due."""
        self.documents = end.copied.documents if end.copied is not None else self.documents
        self.bytes += size
        if now_s - self.sent_s > RATE_OF_S:
            self._samples = deque([(now_s, self.documents)])  # the pause is no part of the rate
        self.sent_s, self._read_time = now_s, end.cluster_time - 1
        if now_s - self._samples[-1][0] >= 1:
            self._samples.append((now_s, self.documents))
        if now_s - self._noticed_s < NOTICE_EVERY_S:
            return False
        self._noticed_s = now_s
        return True

    def state(self, now_s: float, *, client_can_take: bool) -> CopyState:
        if not client_can_take:
            return CopyState.WAITING
        return CopyState.STALLED if now_s - self.sent_s >= STALLED_AFTER_S else CopyState.RUNNING

    def remaining_s(self, now_s: float, after: int | None = None) -> float | None:
        """The time left at the present rate after `after` documents, by default those sent; None if the rate, or the
        number of documents, is not known."""
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now_s - RATE_OF_S:
            samples.popleft()
        began_s, before = samples[0]
        left = self.documents_estimated - (self.documents if after is None else after)
        done = self.documents - before
        if left < 0 or done <= 0 or now_s - began_s < RATE_AFTER_S:
            return None
        return min(left * (now_s - began_s) / done, REMAINING_MAX_S)

    def status(self, namespace: str, now_s: float, *, running: bool) -> CopyStatus:
        return CopyStatus(
            running,
            self.documents,
            namespace,
            self.bytes,
            self.documents_estimated,
            self.remaining_s(now_s) if running else None,
            self._read_time,
            self.generation,
        )
