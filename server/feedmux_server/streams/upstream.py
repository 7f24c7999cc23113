"""Opens a reader, and says when to try again after a failure: the same for streams and wide streams.

Recovery is as in the driver specification: one attempt at once, then attempts with backoff. Unlike there, the attempts
have no end: the caller decides how long to continue.
"""

import random
from dataclasses import dataclass
from typing import Protocol

from feedmux_server.core.limits.backoff import Backoff
from feedmux_server.source.reader import Batch, Failed
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.observer import Observer, Trace

_RETRY_INITIAL_S = 0.2
_RETRY_MAX_S = 10.0


class Reader(Protocol):
    """What an upstream reads: `source.reader`, or a view of a wide stream."""

    @property
    def is_open(self) -> bool: ...

    @property
    def has_cursor(self) -> bool:
        """Whether the reader holds its own cursor in MongoDB."""

    async def open(self) -> None:
        """Open the cursor. Raises `Failed`, or FeedmuxError when a retry cannot help."""

    async def read(self) -> Batch:
        """Wait for events for a while. Raises as `open` does."""

    def interrupt(self) -> None:
        """End a read that waits for events for longer than usual, so that the next read reports progress."""

    async def close(self) -> None:
        """Close the cursor. Does not raise if MongoDB is unavailable."""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """What the traces of an upstream say."""

    source: str
    attributes: dict[str, str | int]
    cause: Trace = None
    """The trace of the work for which it is opened."""


class Upstream:
    """One reader with its failures and traces."""

    def __init__(self, reader: Reader, observer: Observer, context: TraceContext) -> None:
        self.reader = reader
        self.trace: Trace = context.cause
        """The trace of the newest attempt to open."""
        self.failure: Failed | None = None
        """The last failure, until MongoDB answers again."""
        self._observer = observer
        self._context = context
        self._backoff = Backoff(_RETRY_INITIAL_S, _RETRY_MAX_S, 2.0, 0.5)

    async def open(self) -> None:
        """Open the reader in its own trace, because a stream outlives the call that first asked for it. The trace of a
        resume is linked to the trace that it resumes. Raises as the reader does."""
        name = "feedmux stream open" if self.failure is None else "feedmux stream resume"
        attributes = {"feedmux.source": self._context.source, **self._context.attributes}
        if self.failure is not None:
            attributes["error.type"] = self.failure.kind
        with self._observer.span(name, attributes, root=True, links=(self.trace,)) as span:
            self.trace = span.trace
            await self.reader.open()

    def answered(self) -> None:
        """MongoDB has answered a read: the next failure is the first."""
        self.failure = None
        self._backoff.reset()

    def retry_delay_s(self, failure: Failed) -> float:
        """Note a failure; return the seconds to wait before the next attempt, 0 for the one that is made at once."""
        is_first, self.failure = self.failure is None, failure
        self._observer.count(metrics.RESUMES, 1, self._context.source, failure.kind)
        return 0.0 if is_first and failure.at_once else self._backoff.next_delay(random.random())
