"""What the server tells about itself while it works; here nobody listens, and telling costs a call.

`source`, `state`, `fanout` and `rpc` call it at named points: for each batch read, message and call, never for an
event. `observing` is the one that listens. What can be counted by looking (streams, rings, quotas) is not told:
`fanout.survey` looks.
"""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, Self

Trace = object
"""Names a span, so that others can link to it; None where there is none. Others only keep it."""
Attributes = Mapping[str, str | int | float | bool]
Metadata = Callable[[], Iterable[tuple[str, str | bytes]] | None]


class Span:
    """A piece of work in a trace, as a context manager; its errors are those that leave it."""

    __slots__ = ()

    @property
    def trace(self) -> Trace:
        return None

    def link(self, other: Trace) -> None:
        """It has to do with the other."""

    def set(self, name: str, value: str | int | float) -> None:
        """An attribute that is known only now."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The end of the work."""


class Call(Span):
    """An RPC that is being served."""

    __slots__ = ()

    def answered(self, status: str, reason: str = "") -> None:
        """How it ends: a gRPC status, and the ErrorReason where it is not OK. Unsaid: the client cancelled it."""


class SessionObserver:
    """Follows the messages of one session."""

    __slots__ = ()

    def sent(self, last_sequence: int, count: int, size: int, read_time_s: float, stream: Trace) -> None:
        """Events up to `last_sequence` were given to gRPC; `stream` read the first of them at `read_time_s`."""

    def acked(self, sequence: int) -> None:
        """The client has processed everything up to it."""


class Observer:
    """Nobody listens."""

    def batch_read(self, source: str, events: int, size: int, happened_s: float, read_time_s: float) -> None:
        """A batch came from MongoDB; its last event happened at `happened_s` by MongoDB's clock (0: not known)."""

    def batch_in_ring(self, source: str, read_time_s: float) -> None:
        """The batch that was read at `read_time_s` can be taken by subscribers."""

    def resumed(self, source: str, error: str) -> None:
        """A change stream failed with `error` and is resumed."""

    def session(self, tenant: str) -> SessionObserver:
        """A session begins."""
        return NO_SESSION

    def session_ended(self, tenant: str, outcome: str) -> None:
        """It ended with OK, CANCELLED or an ErrorReason."""

    def history_notice(self, tenant: str) -> None:
        """A session was told that its place is at risk."""

    def committed(self, outcome: str, count: int = 1) -> None:
        """So many commits had this outcome; see `metrics.COMMITS`."""

    def commit_took(self, duration_s: float) -> None:
        """A round trip that commits."""

    def redis_failed(self, code: str) -> None:
        """A round trip failed."""

    def refused(self, tenant: str, quota: str) -> None:
        """A call was refused by a quota."""

    def task_began(self, kind: str) -> None:
        """A task of this kind begins; from now on there is a count of their failures."""

    def task_failed(self, kind: str) -> None:
        """A task of this kind failed unexpectedly."""

    def loop_late(self, by_s: float) -> None:
        """The event loop came to a timer so late."""

    def call(self, method: str, metadata: Metadata) -> Call:
        """A call of `package.Service/Method` begins; its caller's trace context is in the metadata."""
        return NO_CALL

    def span(
        self, name: str, attributes: Attributes | None = None, *, client: bool = False, root: bool = False,
        links: Iterable[Trace] = (),
    ) -> Span:  # fmt: skip
        """Work begins. `client`: it waits for another server, and only as a part of other work is it told of; regular
        looks are not. `root`: it is nobody's part, whoever began it."""
        return NO_SPAN

    @property
    def here(self) -> Trace:
        """The span that is under way."""
        return None


NO_SPAN: Final = Span()
NO_CALL: Final = Call()
NO_SESSION: Final = SessionObserver()
NOBODY: Final = Observer()
