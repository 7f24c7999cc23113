"""The wide streams of the process: started and ended as `core.delivery.wide_plan` decides, one task each.

The stream manager owns them. A feed's reader reports when it opens and closes (`enter`, `leave`), and asks from time to
time which wide stream it should be a view of (`of`). When the plan changes, the new stream starts before the old one
ends, so that views change streams at their position.
"""

import asyncio
import contextvars
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.wide_plan import WideLimits, WidePlan, group_of
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key
from feedmux_server.core.limits.memory import Memory
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.source.deployment import Source
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.source.reader import ChangeStreamReader
from feedmux_server.streams.wide.stream import WideStream, WideStreamLimits
from feedmux_server.supervision import Tasks

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_RETIRE_S = 30.0


@dataclass(slots=True)
class _Run:
    """One wide stream, from the decision to its end."""

    scope: Scope
    task: asyncio.Task[None]
    stream: WideStream | None = None
    seen: tuple[float, int, int, int] = (0.0, 0, 0, 0)
    """The time of the last measurement, and the counts of events read, events taken and reads at that time."""
    retired_s: float | None = None


@dataclass(slots=True)
class _Group:
    run: _Run | None = None
    retired: list[_Run] = field(default_factory=list)


class WideStreams:
    """Runs the wide streams that the plan wants."""

    def __init__(
        self,
        sources: dict[str, Source],
        tasks: Tasks,
        limits: WideLimits,
        stream_limits: WideStreamLimits,
        read_limits: ReadLimits,
        memory: Memory | None = None,
    ) -> None:
        self._memory = memory
        self.plan = WidePlan(limits)
        self._sources = sources
        self._tasks = tasks
        self._stream_limits = stream_limits
        self._read_limits = read_limits
        self._groups: dict[StreamKey, _Group] = {}
        self._watching: asyncio.Task[None] | None = None

    def enter(self, key: StreamKey) -> None:
        """Note that a feed that may be a view has opened."""
        self.plan.enter(key, monotonic_s())
        self._follow(group_of(key))
        if self._watching is None:
            self._watching = self._tasks.keep_running("wide-plan", self._watch)

    def leave(self, key: StreamKey) -> None:
        """Note that the feed has closed."""
        self.plan.leave(key, monotonic_s())
        self._follow(group_of(key))

    def of(self, name: StreamKey) -> WideStream | None:
        """The wide stream that the feeds of a group should be views of."""
        group = self._groups.get(name)
        stream = group.run.stream if group is not None and group.run is not None else None
        return None if stream is None or stream.ended else stream

    def streams(self) -> Iterator[WideStream]:
        """All wide streams that read now."""
        for group in self._groups.values():
            for run in (group.run, *group.retired):
                if run is not None and run.stream is not None and not run.stream.ended:
                    yield run.stream

    def drop(self, source: str) -> None:
        """End the wide streams of a source, because MongoDB may have lost what they have read. The plan starts others,
        at the present."""
        for group in self._groups.values():
            for run in (group.run, *group.retired):
                if run is not None and run.scope.source == source and run.task is not asyncio.current_task():
                    run.task.cancel()

    def stop(self) -> None:
        """End every wide stream."""
        for group in self._groups.values():
            for run in (group.run, *group.retired):
                if run is not None:
                    run.task.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def _follow(self, name: StreamKey) -> None:
        """Carry out the plan for a group."""
        wanted = self.plan.wanted(name, monotonic_s())
        group = self._groups.get(name)
        if group is None:
            if wanted is None:
                return
            group = self._groups[name] = _Group()
        run = group.run
        if run is not None and not run.task.done() and run.scope == wanted:
            return
        if run is not None and not run.task.done():
            run.retired_s = monotonic_s()
            group.retired.append(run)
        group.run = None
        if wanted is not None:
            # In its own context: the task is not part of the trace of the feed for which it started.
            task = self._tasks.run_once(
                "wide",
                partial(self._read, name, wanted),
                of=f"{wanted.source}-{wanted.namespace}",
                context=contextvars.Context(),
            )
            group.run = _Run(wanted, task)
        elif not group.retired and not self.plan.has_feeds(name):
            del self._groups[name]

    async def _read(self, name: StreamKey, scope: Scope) -> None:
        source = self._sources[scope.source]
        key = stream_key(replace(name.spec, scope=scope))
        try:
            start = ResumeToken.high_water_mark(await source.clock.operation_time())
            run = self._groups[name].run
            if run is None or run.task is not asyncio.current_task():
                return
            reader = ChangeStreamReader(source, key, JoinPoint(start), self._read_limits)
            run.stream = WideStream(key, reader, start, self._stream_limits, source.observer, self._memory)
            run.seen = (monotonic_s(), 0, 0, 0)
            await run.stream.run()
        except FeedmuxError as error:
            if error.reason not in (ErrorReason.SOURCE_UNAVAILABLE, ErrorReason.TIMELINE_FORKED):
                self._give_up(name, scope, error.reason.value)
        except Exception:
            log.exception("a wide stream failed unexpectedly", extra={"source": scope.source})
            self._give_up(name, scope, ErrorReason.INTERNAL.value)

    def _give_up(self, name: StreamKey, scope: Scope, reason: str) -> None:
        log.warning(
            "a wide stream was given up; feedmux reads its feeds one by one",
            extra={"source": scope.source, "scope": scope.namespace, "reason": reason},
        )
        self.plan.refused(name, monotonic_s())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for name, group in list(self._groups.items()):
                self._measure(name, group)
                for run in list(group.retired):
                    self._retire(group, run)
                self._follow(name)

    def _measure(self, name: StreamKey, group: _Group) -> None:
        run = group.run
        if run is None or run.stream is None:
            return
        now_s, stream = monotonic_s(), run.stream
        since_s, events, taken, reads = run.seen
        if now_s - since_s < 10 * _LOOK_S:
            return
        run.seen = (now_s, stream.events_read, stream.events_taken, stream.batches_read)
        came, lasted_s = stream.events_read - events, now_s - since_s
        share = (stream.events_taken - taken) / max(came, 1)
        self.plan.measured(name, now_s, came / lasted_s, share, (stream.batches_read - reads) / lasted_s)

    def _retire(self, group: _Group, run: _Run) -> None:
        """End a retired stream once its views have moved to the new stream, or have had the time to move."""
        if run.task.done():
            group.retired.remove(run)
        elif (
            run.stream is None
            or not run.stream.view_count
            or (run.retired_s is not None and monotonic_s() - run.retired_s > _RETIRE_S)
        ):
            run.task.cancel()
