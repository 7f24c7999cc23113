"""The interface by which the server reports on itself while it works; here it does nothing, and a report costs a call.

`source`, `store`, `streams`, `sessions` and `rpc` call it at named points: for each batch read, message and call, never
for an event. `otel_observer` implements it. State that can be read at any time (streams, rings, quotas) is not
reported: `jobs.metrics_collector` reads it.
"""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, Self

Trace = object
"""Names a span, so that other spans can link to it; None without a span. Other modules only store it."""
Attributes = Mapping[str, str | int | float | bool]
Metadata = Callable[[], Iterable[tuple[str, str | bytes]] | None]


class Span:
    """A piece of work in a trace, as a context manager; an exception that leaves the block is the span's error."""

    __slots__ = ()

    @property
    def trace(self) -> Trace:
        return None

    def link(self, other: Trace) -> None:
        """Link this span to the span `other`."""

    def set(self, name: str, value: str | int | float) -> None:
        """Set an attribute that becomes known only during the work."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the work."""


class Call(Span):
    """An RPC that is being served."""

    __slots__ = ()

    def answered(self, status: str, reason: str = "") -> None:
        """Report how the call ends: a gRPC status, and the ErrorReason if it is not OK. Not called if the client
        cancelled the call."""


class SessionObserver:
    """Follows the messages of one session."""

    __slots__ = ()

    def sent(self, last_sequence: int, count: int, size: int, read_time_s: float, stream: Trace) -> None:
        """Events up to `last_sequence` were given to gRPC; `stream` read the first of them at `read_time_s`."""

    def acked(self, sequence: int) -> None:
        """The client has processed everything up to `sequence`."""


class Observer:
    """An observer that does nothing."""

    def batch_read(self, source: str, events: int, size: int, happened_s: float, read_time_s: float) -> None:
        """A batch came from MongoDB; its last event happened at `happened_s` by MongoDB's clock (0: not known)."""

    def batch_in_ring(self, source: str, read_time_s: float) -> None:
        """Subscribers can take the batch that was read at `read_time_s`."""

    def resumed(self, source: str, error: str) -> None:
        """A change stream failed with `error` and is resumed."""

    def documents_read(self, source: str, documents: int, size: int) -> None:
        """A batch of a copy's documents came from MongoDB."""

    def documents_not_at_this_time(self, source: str) -> None:
        """MongoDB cannot read a copy's documents as of the chosen time; they are read as of a later one."""

    def copy_begun_again(self, source: str, tenant: str, cause: str) -> None:
        """A tenant's copy begins again, or goes back; see `metrics.SNAPSHOT_RESTARTS`."""

    def timeline_forked(self, source: str) -> None:
        """A deployment has lost history that was read: it was restored."""

    def session(self, tenant: str) -> SessionObserver:
        """A session begins."""
        return NO_SESSION

    def session_ended(self, tenant: str, outcome: str) -> None:
        """A session ended with OK, CANCELLED or an ErrorReason."""

    def history_notice(self, tenant: str) -> None:
        """A session was notified that its position is at risk."""

    def set_aside(self, tenant: str) -> None:
        """An event of a group has become a dead letter."""

    def committed(self, outcome: str, count: int = 1) -> None:
        """`count` commits had this outcome; see `metrics.COMMITS`."""

    def commit_took(self, duration_s: float) -> None:
        """A round trip with commits took `duration_s`."""

    def redis_failed(self, code: str) -> None:
        """A round trip failed."""

    def refused(self, tenant: str, quota: str) -> None:
        """A quota rejected a call."""

    def task_began(self, kind: str) -> None:
        """A task of this kind begins; from now on, failures of this kind are counted."""

    def task_failed(self, kind: str) -> None:
        """A task of this kind failed unexpectedly."""

    def loop_late(self, by_s: float) -> None:
        """The event loop ran a timer `by_s` late."""

    def call(self, method: str, metadata: Metadata) -> Call:
        """A call of `package.Service/Method` begins; its caller's trace context is in the metadata."""
        return NO_CALL

    def span(
        self, name: str, attributes: Attributes | None = None, *, client: bool = False, root: bool = False,
        links: Iterable[Trace] = (),
    ) -> Span:  # fmt: skip
        """Work begins. `client`: the work waits for another server, and is reported only as part of other work, so
        regular checks are not. `root`: the work is not part of any other work."""
        return NO_SPAN

    @property
    def here(self) -> Trace:
        """The span that is under way."""
        return None


NO_SPAN: Final = Span()
NO_CALL: Final = Call()
NO_SESSION: Final = SessionObserver()
NOBODY: Final = Observer()
