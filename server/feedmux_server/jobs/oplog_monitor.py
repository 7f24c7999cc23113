"""Watches the oplogs: forecasts when each session's position leaves the oplog, and warns the session before that.

One task for each source checks its oplog every few seconds. If the account may not read the oplog, the task logs this
once, and from then on only checks whether MongoDB answers: without the oplog there is no headroom to report.
"""

import asyncio
import logging
from functools import partial

from feedmux_server.clock import monotonic_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.source.deployment import Source
from feedmux_server.streams.manager import StreamManager
from feedmux_server.supervision import Tasks

log = logging.getLogger(__name__)

_UNREADABLE = frozenset({ErrorReason.SOURCE_UNAUTHORIZED, ErrorReason.SOURCE_UNSUITABLE, ErrorReason.OPTION_REFUSED})
"""Errors that a retry does not change: not permitted, no oplog, or (a mongos) no access to an oplog."""
_SLICE = 500
"""Sessions to check before other tasks get a turn at the event loop."""


class OplogMonitor:
    """Watches the oplogs of all sources."""

    def __init__(self, manager: StreamManager, every_s: float) -> None:
        self._manager = manager
        self._every_s = every_s

    def start(self, tasks: Tasks) -> list[asyncio.Task[None]]:
        """Start one task for each source. The caller cancels the tasks at the end."""
        return [
            tasks.keep_running("history", partial(self._watch, source), of=name)
            for name, source in self._manager.sources.items()
        ]

    async def _watch(self, source: Source) -> None:
        readable = True
        while True:
            try:
                if readable:
                    self._manager.forecasts[source.name].observe(await source.oplog(), monotonic_s())
                    await self._tell_sessions(source.name)
                else:
                    await source.operation_time()
                self._manager.sources_away.discard(source.name)
            except FeedmuxError as error:
                if readable and error.reason in _UNREADABLE:
                    readable = False
                    log.warning(
                        "the oplog cannot be read, so feedmux cannot warn sessions before they lose history: %s. Grant"
                        " `find` and `collStats` on local.oplog.rs (the role read on the database local has both)",
                        error.message,
                        extra={"source": source.name},
                    )
                    continue
                if error.reason is ErrorReason.SOURCE_UNAVAILABLE:
                    self._manager.sources_away.add(source.name)
            await asyncio.sleep(self._every_s)

    async def _tell_sessions(self, source: str) -> None:
        forecast = self._manager.forecasts[source]
        for number, session in enumerate(list(self._manager.sessions)):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if session.source == source and session in self._manager.sessions:
                session.has_headroom(forecast.headroom_s(session.subscriber.safe_place.cluster_time >> 32))
