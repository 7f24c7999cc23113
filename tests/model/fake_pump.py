"""`fanout.pump` without an event loop: each `step` is what the task does between two awaits.

Keep it in step with the real one. A pump that rests is woken by demand or by a timeout, which is the simulator's to
give, so that a wake-up that is missing shows.
"""

from typing import Protocol

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feed_streams import FeedStreams
from feedmux_server.core.shared_stream import SharedStream, StreamState
from tests.model.source import FakeCursor, FakeSource


class PumpWorld(Protocol):
    """What the pump asks of the simulator."""

    source: FakeSource
    batch_events_max: int
    chunk_bytes_max: int

    @property
    def slots_wanted(self) -> bool: ...

    def failure(self) -> FeedmuxError | None:
        """Whether reading fails now: FeedmuxError with SOURCE_UNAVAILABLE is one that reopening mends."""

    def slot_free(self) -> None: ...

    def pump_done(self) -> None: ...


class FakePump:
    """Runs one SharedStream."""

    def __init__(self, stream: SharedStream, streams: FeedStreams, world: PumpWorld) -> None:
        self.stream = stream
        self._streams = streams
        self._world = world
        self._cursor: FakeCursor | None = None
        self._at = stream.origin
        self.done = False
        self.resting = False
        self.demand = False
        stream.demand_changed = self._set_demand

    @property
    def runnable(self) -> bool:
        return not self.done and (not self.resting or self.demand)

    def step(self, *, timed_out: bool = False) -> None:
        """`timed_out` is for one that rests."""
        stream = self.stream
        if self.done:
            return
        if self.resting:
            if not self.demand and not timed_out:
                return
            self._wake(timed_out=not self.demand)
            return
        try:
            if stream.state is StreamState.ENDED:
                self._let_readers_finish()
            elif (stream.opened or not stream.subscribers) and not stream.wants_more():
                self._rest()
            elif self._streams.is_superfluous(stream):
                self._finish()
            else:
                self._advance()
        except FeedmuxError as error:
            stream.end(error)
            self._cursor = None

    def _advance(self) -> None:
        stream, world = self.stream, self._world
        failure = world.failure()
        if failure is not None and failure.reason is not ErrorReason.SOURCE_UNAVAILABLE:
            raise failure
        if self._cursor is None:
            if stream.state is StreamState.GATHERING:
                self._at = stream.origin  # fixed now: until here one who joins may have moved it back
            stream.move_to(StreamState.OPENING)
            if failure is not None:
                self._recover()
                return
            self._cursor = world.source.open(self._at)
            stream.opened = True
        if stream.state is not StreamState.READING:
            stream.move_to(StreamState.READING)
            stream.wake_takers()
        if failure is not None:
            self._recover()
            return
        batch = self._cursor.read(world.source.rng.randint(1, world.batch_events_max), world.chunk_bytes_max, 0.0)
        self._at = self._cursor.at
        trailed = self._streams.is_trailing(stream)
        stream.append(batch.chunks, batch.post_batch)
        if trailed and not self._streams.is_trailing(stream):
            self._world.slot_free()
        if batch.chunks:
            stream.wake_takers()
        if batch.exhausted:
            raise FeedmuxError(ErrorReason.FEED_INVALIDATED, "invalidated")

    def _recover(self) -> None:
        self.stream.resumes += 1
        self.stream.move_to(StreamState.RECOVERING)
        self._cursor = None

    def _rest(self) -> None:
        stream = self.stream
        if stream.state is StreamState.READING:
            stream.move_to(StreamState.PAUSED)
        if stream.subscribers:
            if self._streams.is_trailing(stream) and self._world.slots_wanted and not stream.has_usable_credit:
                self._finish()
                return
        elif self._streams.is_superfluous(stream) or stream.state is StreamState.RECOVERING:
            self._finish()
            return
        self.resting = True

    def _wake(self, *, timed_out: bool) -> None:
        stream = self.stream
        self.resting = self.demand = False
        if stream.state is StreamState.ENDED or not timed_out or stream.wants_more():
            return
        if not stream.subscribers:
            self._finish()
        elif self._cursor is not None:
            self._cursor = None
            stream.move_to(StreamState.IDLE)

    def _let_readers_finish(self) -> None:
        if self.stream.subscribers:
            self.resting = True
        else:
            self._finish()

    def _finish(self) -> None:
        self.done = True
        self.stream.demand_changed = _ignore
        self._streams.close(self.stream)
        self._world.pump_done()

    def _set_demand(self) -> None:
        self.demand = True


def _ignore() -> None:
    """The pump is gone."""
