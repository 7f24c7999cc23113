"""Writes what a group sets aside to the collection for dead letters, and only then settles it.

Invariant: an event of `KeyLedger.to_set_aside` is settled when a majority of the collection's members has it. A crash
in between stores nothing twice, because a letter has its event's id. While the collection is unavailable, or full for
the tenant, the keys of these events are held, and everything else is delivered.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from itertools import islice
from typing import Final

from feedmux_server.clock import wall_s
from feedmux_server.core.delivery.group_reader import GroupReader
from feedmux_server.core.delivery.key_ledger import SetAside
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.chunk import event_id, read_token
from feedmux_server.core.events.dead_letter import DeadLetter, dead_letter
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.backoff import Backoff
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.observer import Observer

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 30.0


class LetterWriter:
    """Of one group. A task runs only while there is something to write."""

    def __init__(
        self,
        tenant: str,
        subscription: str,
        key: StreamKey,
        reader: GroupReader,
        settled: Callable[[], None],
        letters: DeadLetters,
        observer: Observer,
    ) -> None:
        """`settled` is called after each event that is settled."""
        self._tenant = tenant
        self._subscription = subscription
        self._stream_key = key.digest
        self._reader = reader
        self._settled = settled
        self._letters = letters
        self._observer = observer
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False

    def look(self, tasks: Tasks) -> None:
        """Begin to write if there is something to write."""
        if self._task is None and self._reader.ledger.aside:
            self._task = tasks.run_once("dead-letters", self._run, of=self._subscription)

    def close(self) -> None:
        """Write no more: the group has ended."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._write_all()
        finally:
            self._task = None

    async def _write_all(self) -> None:
        backoff, skipped = Backoff(RETRY_FIRST_S, RETRY_MAX_S, 2.0, 0.5), 0
        while self._reader.ledger.aside:
            skipped %= self._reader.ledger.aside
            try:
                letters = self._letters.letters
                async with letters.turn(self._tenant):
                    # What is first may have changed while others had their turn.
                    each = next(islice(self._reader.ledger.to_set_aside(), skipped, None))
                    await letters.insert(self._letter(each))
            except FeedmuxError as error:
                self._failed(error)
                skipped += 1  # one that cannot be written, as it may be too large, must not hold up the others
                await asyncio.sleep(backoff.next_delay(random.random()))
                continue
            self._is_failing = False
            backoff.reset()
            self._observer.set_aside(self._tenant)
            self._reader.set_aside(each.number)
            self._settled()

    def _failed(self, error: FeedmuxError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning(
                "dead letters of a subscription cannot be written, and hold their keys",
                extra={"tenant": self._tenant, "subscription": self._subscription, "reason": error.reason.value},
            )

    def _letter(self, each: SetAside) -> DeadLetter:
        return dead_letter(
            each.event,
            tenant=self._tenant,
            subscription=self._subscription,
            stream_key=self._stream_key,
            attempts=each.deliveries,
            reasons=each.reasons,
            member=each.member,
            cluster_time=read_token(event_id(each.event, 0)).cluster_time,
            now_s=wall_s(),
        )
