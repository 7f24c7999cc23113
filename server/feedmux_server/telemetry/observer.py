"""The interface by which the server reports on itself while it works; here it does nothing, and a report costs a call.

`source`, `store`, `streams`, `sessions` and `rpc` call it at named points: for each batch read, message and call, never
for an event. `otel_observer` implements it. State that can be read at any time (streams, rings, quotas) is not
reported: `jobs.metrics_collector` reads it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Self

from feedmux_server.telemetry.metrics import Metric

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
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

    def count(self, metric: Metric, number: int, *attributes: str) -> None:
        """So many more of what a counter counts; `attributes` in the order of `Metric.attributes`."""

    def measured(self, metric: Metric, duration_s: float) -> None:
        """A value of a histogram without attributes."""

    def batch_read(self, source: str, events: int, size: int, happened_s: float, read_time_s: float) -> None:
        """A batch came from MongoDB; its last event happened at `happened_s` by MongoDB's clock (0: not known)."""

    def batch_in_ring(self, source: str, read_time_s: float) -> None:
        """Subscribers can take the batch that was read at `read_time_s`."""

    def documents_read(self, source: str, documents: int, size: int) -> None:
        """A batch of a copy's documents came from MongoDB."""

    def session(self, tenant: str) -> SessionObserver:
        """A session begins."""
        return NO_SESSION

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
