"""Finds out that a deployment was restored from an older copy, or replaced by one.

A majority never loses an entry, whatever is elected, rolled back or resynchronized. So the oplog must have the
newest majority-committed entry that this server knows, while it reaches back so far; an oplog that has other entries
before and after that time is another history. A restore needs a restart of MongoDB, which ends every cursor and every
connection: after such a loss, `verify` looks once for all streams, before any of them continues. `jobs.oplog_monitor`
looks from time to time, too.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from feedmux_server.clock import monotonic_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.timeline import FORKS_MAX, Fork, OplogEntry, TimelineRecord
from feedmux_server.source.commands import SourceCommands
from feedmux_server.source.oplog import DENIED_S, Oplog
from feedmux_server.source.source_clock import as_int
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.observer import Observer

log = logging.getLogger(__name__)


class TimelineStore(Protocol):
    """Where servers store what they know. Its methods raise STATE_UNAVAILABLE."""

    async def read(self, source_id: str) -> TimelineRecord: ...

    async def add(self, source_id: str, record: TimelineRecord) -> TimelineRecord:
        """Store a record, with the forks that others have stored. Returns what is stored now."""
        ...


class SourceTimeline:
    """The history of one deployment."""

    def __init__(self, commands: SourceCommands, oplog: Oplog, observer: Observer) -> None:
        self.listeners: list[Callable[[Fork], None]] = []
        """Called for each fork, synchronously, before the server reads on."""
        self.forked_count = 0
        self.store: TimelineStore | None = None
        self.source_id: Callable[[], str] = str
        self._written: TimelineRecord | None = None
        """What the store has. None: it was not read yet."""
        self._asks_store = True
        self._commands = commands
        self._oplog = oplog
        self._observer = observer
        self._forks: list[Fork] = []
        """The newest ones."""
        self._known: OplogEntry | None = None
        """The newest entry that a majority had at the last look."""
        self._seen_time = 0
        """The time of the newest event that was read. It does not replace the known entry before the next look: it may
        be an event of a restored deployment, of a stream that has met no failure."""
        self._since = 0
        """What was read after this time was read by this process."""
        self._missing: tuple[bytes, int] | None = None
        """The stream, and the time, of an event that MongoDB does not have, while that alone says nothing of others."""
        self._doubts = 1
        self._settled = 0
        """The number of doubts that the last check has settled."""
        self._lock = asyncio.Lock()
        self._in_doubt = asyncio.Event()
        self._read_from_s = 0.0
        """When the oplog may be read again, after MongoDB has denied it."""

    def read(self, event_time: int) -> None:
        """Note that a change stream has shown an event of this time."""
        self._seen_time = max(self._seen_time, event_time)

    def doubt(self) -> None:
        """Note that a connection or a cursor was lost: MongoDB may have been restored meanwhile."""
        self._doubts += 1
        self._in_doubt.set()

    async def doubted(self, timeout_s: float) -> None:
        """Wait for a doubt."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._in_doubt.wait()

    async def verify(self) -> None:
        """Look for a fork if there is a doubt. Callers share a look that has begun after their doubt. Raises
        SOURCE_UNAVAILABLE."""
        while self._settled < self._doubts:
            async with self._lock:
                if self._settled < self._doubts:
                    doubts = self._doubts
                    self._in_doubt.clear()
                    await self._look()
                    self._settled = doubts

    async def check(self) -> None:
        """Look for a fork now, and store what is known. Raises SOURCE_UNAVAILABLE."""
        self._doubts += 1
        self._asks_store = True
        await self.verify()
        await self._save()

    def lost(self, place: ResumeToken) -> FeedmuxError | None:
        """The error for a position of a history that the deployment no longer has."""
        for fork in self._forks:
            if fork.has_lost(place):
                return fork.error(self._commands.name)
        return None

    @property
    def forks(self) -> list[Fork]:
        """The newest known ones, oldest first. Not for changes."""
        return self._forks

    def start_of(self, cluster_time: int) -> int:
        """The time at which a start at `cluster_time` begins: at a time of a lost history, the deployment has nothing
        until the next entry, so the start is the same at the end of the common history."""
        for fork in self._forks:
            if fork.has_lost(ResumeToken.high_water_mark(cluster_time)):
                return fork.after + 1
        return cluster_time

    def forked_since(self, count: int, place: ResumeToken) -> FeedmuxError | None:
        """The error for a position that was reached when `forked_count` was `count`."""
        for fork in self._forks[max(0, count - self.forked_count + len(self._forks)) :]:
            if fork.may_have_lost(place):
                return fork.error(self._commands.name)
        return None

    async def missing(self, place: ResumeToken, stream: bytes) -> FeedmuxError:
        """Note that MongoDB does not have the event of `place`, which came from it. Returns the error for its readers.
        `stream` is their key.

        The event may have been lost long ago, so this alone says nothing about other streams. But if the oplog cannot
        be asked, two events that this process has read itself, in two streams, are a sign for all.
        """
        self.doubt()
        with suppress(FeedmuxError):
            await self.verify()
        if (error := self.lost(place)) is not None:
            return error
        fork = Fork()
        with suppress(FeedmuxError):
            fork = Fork.between(*await self._oplog.around(place.cluster_time))
        if (self._known is None or not self._is_readable) and place.cluster_time > self._since:
            first = self._missing
            if first is None:
                self._missing = stream, place.cluster_time
            elif stream != first[0] and place.cluster_time != first[1]:
                self._announce(fork, is_own=True)
        return fork.error(self._commands.name)

    async def _look(self) -> None:
        """Raises SOURCE_UNAVAILABLE."""
        if self.store is not None and self._written is None and self._asks_store:
            self._asks_store = False  # streams do not wait again for a Redis that does not answer
            with suppress(FeedmuxError):
                self._written = await self.store.read(self.source_id())
                self._adopt(self._written)
        stored = self._written.known if self._known is None and self._written is not None else None
        await self._compare_with_present(self._known or stored, is_own=stored is None)

    async def _save(self) -> None:
        record = TimelineRecord(self._known, tuple(each for each in self._forks if each.until))
        may_write = self.store is not None and self._written not in (None, record)
        if may_write and self.store is not None and record.known is not None and record.known.term is not None:
            with suppress(FeedmuxError):
                self._written = await self.store.add(self.source_id(), record)
                self._adopt(self._written)

    def _adopt(self, stored: TimelineRecord) -> None:
        """Note the forks that others have found, before those that this process has announced."""
        others = [each for each in stored.forks if each not in self._forks]
        self._forks = [*others, *self._forks][-FORKS_MAX:]

    async def _compare_with_present(self, known: OplogEntry | None, *, is_own: bool) -> None:
        """`is_own`: this process has seen the known entry, so that what it has read may be lost. Raises
        SOURCE_UNAVAILABLE."""
        commands = self._commands
        with commands.span("hello", "admin"):
            reply = await commands.answer(commands.client.admin.command("hello"))
        if not self._since and "operationTime" in reply:
            self._since = as_int(reply["operationTime"])
        written = reply.get("lastWrite", {})
        committed = written.get("majorityOpTime")
        if committed is None or not as_int(committed["ts"]):
            return  # a mongos
        newest = OplogEntry(as_int(committed["ts"]), committed["t"])
        # A primary that was just elected has every entry that a majority had, but may not know yet that they had it.
        last_time = as_int(written["opTime"]["ts"]) if reply.get("isWritablePrimary") else None
        fork, seen_time = None, self._seen_time
        if known is not None and known != newest:
            fork = await self._compare(known, last_time)
            if fork is None and seen_time > known.time:
                fork = await self._compare(OplogEntry(seen_time, None), last_time)
        if fork is not None:
            self._known, self._seen_time = newest, 0
            self._announce(fork, is_own=is_own)
        elif self._known is None or newest.time >= self._known.time:
            self._known = newest

    async def _compare(self, known: OplogEntry, last_time: int | None) -> Fork | None:
        """`last_time` is the time of the primary's last entry; None for a secondary."""
        went_back = Fork() if last_time is not None and last_time < known.time else None
        if not self._is_readable:
            return went_back
        try:
            found = await self._oplog.entry_at(known.time)
            if not known.is_other_than(found):
                return None
            before, after = await self._oplog.around(known.time)
            if found is None and before is None:
                return None  # it has left the oplog, as it does in time
            # The three answers may be of two primaries. The first of them may have been cut off from the others, and so
            # without an entry that the next one has.
            if not known.is_other_than(await self._oplog.entry_at(known.time)):
                return None
        except FeedmuxError as error:
            if error.reason not in (ErrorReason.SOURCE_UNAUTHORIZED, ErrorReason.SOURCE_UNSUITABLE):
                # The known entry must not be replaced before the oplog has answered.
                raise FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, error.message, retry_after_s=1.0) from error
            self._read_from_s = monotonic_s() + DENIED_S
            return went_back
        if found is None and after is None and last_time is None:
            return None  # a secondary that lags
        fork = Fork.between(before, found or after)
        # An event of a prepared transaction may have a time that no entry has; after a restore there is an election.
        return None if known.term is None and after is not None and not fork.is_exact else fork

    @property
    def _is_readable(self) -> bool:
        """Whether the account may read the oplog, as far as is known."""
        return monotonic_s() >= self._read_from_s

    def _announce(self, fork: Fork, *, is_own: bool) -> None:
        self._missing = None
        self._forks = [*self._forks, fork][-FORKS_MAX:]
        error = fork.error(self._commands.name)
        log.error(
            "MongoDB was restored from an older copy, or replaced: what was read and not delivered is dropped, and"
            " sessions end with TIMELINE_FORKED (docs/runbook.md)",
            extra={"source": self._commands.name, **error.metadata},
        )
        self._observer.count(metrics.FORKS, 1, self._commands.name)
        if is_own:
            self.forked_count += 1
            for listener in self.listeners:
                try:
                    listener(fork)
                except Exception:  # the others must drop what they have read
                    log.exception("what was read before the restore may not be dropped")
