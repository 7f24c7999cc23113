"""Watches the oplogs: how soon each session's place will have left it, and tells the session in time.

One task for each source takes a look every few seconds. Where the account may not read the oplog it says so once, and
then only keeps asking whether MongoDB answers: there is no headroom to tell of.
"""

import asyncio
import logging
from functools import partial

from feedmux_server.clock import monotonic_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.fanout.hub import Hub
from feedmux_server.source.mongo import Source
from feedmux_server.supervision import Tasks

log = logging.getLogger(__name__)

_UNREADABLE = frozenset({ErrorReason.SOURCE_UNAUTHORIZED, ErrorReason.SOURCE_UNSUITABLE, ErrorReason.OPTION_REFUSED})
"""What MongoDB will say again: not permitted, no oplog, or (a mongos) no such thing here."""
_SLICE = 500
"""Sessions that are looked at before others get a turn at the event loop."""


class HistoryWatch:
    """Of all sources."""

    def __init__(self, hub: Hub, every_s: float) -> None:
        self._hub = hub
        self._every_s = every_s

    def start(self, tasks: Tasks) -> list[asyncio.Task[None]]:
        """To be cancelled at the end."""
        return [
            tasks.keep_running("history", partial(self._watch, source), of=name)
            for name, source in self._hub.sources.items()
        ]

    async def _watch(self, source: Source) -> None:
        readable = True
        while True:
            try:
                if readable:
                    self._hub.forecasts[source.name].observe(await source.oplog(), monotonic_s())
                    await self._tell_sessions(source.name)
                else:
                    await source.operation_time()
                self._hub.sources_away.discard(source.name)
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
                    self._hub.sources_away.add(source.name)
            await asyncio.sleep(self._every_s)

    async def _tell_sessions(self, source: str) -> None:
        forecast = self._hub.forecasts[source]
        for number, session in enumerate(list(self._hub.sessions)):
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if session.source == source and session in self._hub.sessions:
                session.has_headroom(forecast.headroom_s(session.subscriber.safe_place.cluster_time >> 32))
