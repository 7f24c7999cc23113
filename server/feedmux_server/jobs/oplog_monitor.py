"""Watches the oplogs: forecasts when each session's position leaves the oplog, and warns the session before that.

One task for each source checks its oplog every few seconds. If the oplog cannot be read, the task logs this once, tries
again a minute later, and meanwhile only checks whether MongoDB answers: without the oplog there is no headroom to
report.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from feedmux_server.clock import monotonic_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.jobs.monitor_results import MonitorResults
from feedmux_server.rpc.live_sessions import LiveSessions
from feedmux_server.source.deployment import Source
from feedmux_server.source.oplog import DENIED_S
from feedmux_server.supervision import Tasks

log = logging.getLogger(__name__)

_UNREADABLE = frozenset({ErrorReason.SOURCE_UNAUTHORIZED, ErrorReason.SOURCE_UNSUITABLE, ErrorReason.OPTION_REFUSED})
"""Errors that a retry changes at most later: not permitted, no oplog, (a mongos) no access to an oplog, or unknown."""


class OplogMonitor:
    """Watches the oplogs of all sources."""

    def __init__(
        self, sources: Iterable[Source], sessions: LiveSessions, results: MonitorResults, every_s: float
    ) -> None:
        self._sources = sources
        self._sessions = sessions
        self._results = results
        self._every_s = every_s

    def start(self, tasks: Tasks) -> list[asyncio.Task[None]]:
        """Start one task for each source. The caller cancels the tasks at the end."""
        return [tasks.keep_running("history", partial(self._watch, source), of=source.name) for source in self._sources]

    async def _watch(self, source: Source) -> None:
        read_from_s, refused = 0.0, ""
        while True:
            reads = monotonic_s() >= read_from_s
            try:
                if reads:
                    self._results.forecasts[source.name].observe(await source.oplog.state(), monotonic_s())
                    if refused:
                        refused = ""
                        log.warning("the oplog can be read again", extra={"source": source.name})
                    await self._tell_sessions(source.name)
                else:
                    await source.clock.operation_time()
                self._results.unavailable.discard(source.name)
            except FeedmuxError as error:
                if reads and error.reason in _UNREADABLE:
                    read_from_s = monotonic_s() + DENIED_S
                    if error.message != refused:
                        refused = error.message
                        log.warning(
                            "the oplog cannot be read, so feedmux cannot warn sessions before they lose history: %s."
                            " Grant `find` and `collStats` on local.oplog.rs (the role read on the database local has"
                            " both)",
                            error.message,
                            extra={"source": source.name},
                        )
                    continue
                if error.reason is ErrorReason.SOURCE_UNAVAILABLE:
                    self._results.unavailable.add(source.name)
            await asyncio.sleep(self._every_s)

    async def _tell_sessions(self, source: str) -> None:
        forecast = self._results.forecasts[source]
        async for live in self._sessions.in_turns():
            session = live.session
            if session.source == source:
                session.has_headroom(forecast.headroom_s(session.subscriber.safe_place.cluster_time >> 32))
