"""Writes what a group sets aside to the collection for dead letters, and only then settles it.

Invariant: an event of `KeyLedger.to_set_aside` is settled when a majority of the collection's members has it. A crash
in between stores nothing twice, because a letter has its event's id. While the collection is unavailable, or full for
the tenant, the keys of these events are held, and everything else is delivered.

One task of each group does everything that the group does in the collection, one thing after the other: no letter of a
key is written while it is found out whether there are more (`replays`).
"""

import logging
import random
from asyncio import Task
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from feedmux_server.clock import monotonic_s, wall_s
from feedmux_server.core.delivery.group_reader import GroupReader
from feedmux_server.core.delivery.key_ledger import SetAside
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import event_id, read_token
from feedmux_server.core.events.dead_letter import DeadLetter, dead_letter, place_of
from feedmux_server.core.limits.account import LookTurns
from feedmux_server.core.limits.backoff import Backoff
from feedmux_server.sessions.replays import LOOK_S, HostedGroup, Replays
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.streams.wakeup import Wakeup
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.observer import Observer

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
_EVENTS_AT_ONCE: Final = 100
_BYTES_AT_ONCE: Final = 1 << 20
_FAILURES_MAX: Final = 100
"""After so many tries without success, others wait, too."""


class LetterWriter:
    """Of one group."""

    def __init__(
        self,
        group: HostedGroup,
        reader: GroupReader,
        settled: Callable[[], None],
        letters: DeadLetters,
        observer: Observer,
        turns: LookTurns,
        has_lost: Callable[[int], bool],
        *,
        quarantine: bool,
    ) -> None:
        """`settled` is called after events were settled. `turns` are those of the tenant's groups. `has_lost` is that
        of `Replays`. `quarantine`: the later events of a key become dead letters, too."""
        self._tenant, self._subscription, self._stream_key, self._epoch = group
        self._reader = reader
        self._settled = settled
        self._letters = letters
        self._observer = observer
        self._turns = turns
        self._has_turn = False
        self._quarantine = quarantine
        self._replays = Replays(group, reader, settled, letters, has_lost, quarantine=quarantine)
        self._task: Task[None] | None = None
        self._work = Wakeup()
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, 2.0, 0.5)
        self._look_s = monotonic_s() + LOOK_S * random.random()
        """When to find out next what is to be delivered again, or to take a turn for that."""
        self._write_s = 0.0
        """When to write next, after a failure."""
        self._failures = 0
        """How many were not written one after the other, because the tenant has no room for them."""
        self._is_failing = False

    def begin(self, tasks: Tasks) -> None:
        self._task = tasks.keep_running("dead-letters", self._run, of=self._subscription)
        self._reader.ledger.on_aside = self.look

    def find_held(self) -> None:
        """Members hold events that may be letters: find those that are delivered again now, before others get them."""
        self._take_turn()
        self._look_s = 0.0
        self._work.set()

    def _take_turn(self) -> None:
        if not self._has_turn and self._task is not None:
            self._has_turn, self._look_s = True, self._turns.take(monotonic_s())

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turns.end()
        self._look_s = monotonic_s() + LOOK_S

    def look(self) -> None:
        """There may be something to do."""
        ledger = self._reader.ledger
        if ledger.aside or ledger.replayed or ledger.failed_letters:
            self._work.set()

    @property
    def waiting(self) -> int:
        """The number of keys that are held because their letters are not written. Those of quarantined keys are
        written a little later than they are read."""
        ledger = self._reader.ledger
        return ledger.aside if self._is_failing else ledger.failed_aside

    def close(self) -> None:
        """Write no more: the group has ended."""
        self._end_turn()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        ledger, delete_s, note_s = self._reader.ledger, 0.0, 0.0
        while True:
            try:
                if ledger.failed_letters and monotonic_s() >= note_s:
                    note_s = monotonic_s() + LOOK_S
                    await self._replays.note_failures()
                    note_s = 0.0
                if ledger.replayed and monotonic_s() >= delete_s:
                    delete_s = monotonic_s() + LOOK_S
                    if await self._replays.delete():
                        self._take_turn()  # there may be more to deliver again
                    delete_s = 0.0
                if monotonic_s() >= self._look_s:
                    self._take_turn()
                if self._has_turn and monotonic_s() >= self._look_s:
                    self._end_turn()
                    # A group whose members have left for a while is no session of its tenant.
                    if len(self._reader) and await self._replays.look():
                        self._take_turn()
            except FeedmuxError:  # the collection has logged it
                self._end_turn()
            if ledger.aside and monotonic_s() >= self._write_s:
                await self._write()
            due_s = self._look_s
            if ledger.aside:
                due_s = min(due_s, self._write_s)
            if ledger.replayed:
                due_s = min(due_s, delete_s)
            if ledger.failed_letters:
                due_s = min(due_s, note_s)
            await self._work.wait(due_s - monotonic_s())

    async def _write(self) -> None:
        """Write some of what is to be set aside, and settle it: one event that has failed, and some of pinned keys."""
        ledger = self._reader.ledger
        for take in (self._first, self._following):
            batch = list[SetAside]()
            try:
                letters = self._letters.letters
                async with letters.writing(self._tenant):
                    # What is first may have changed while others had their turn.
                    batch = take()
                    if not batch:
                        continue
                    written, pins = await self._stored(batch)
            except FeedmuxError as error:
                self._note_failure(error)
                if batch:
                    ledger.defer(batch[0].number)  # it may be too large, and must not hold up the others
                full = error.reason is ErrorReason.QUOTA_EXCEEDED
                self._failures = self._failures + 1 if full else _FAILURES_MAX
                if self._failures >= min(ledger.aside, _FAILURES_MAX):
                    self._failures = 0
                    self._write_s = monotonic_s() + self._backoff.next_delay(random.random())
                    return
                continue
            self._is_failing = False
            self._failures = 0
            self._backoff.reset()
            for _ in range(written):
                self._observer.count(metrics.DEAD_LETTERS, 1, self._tenant)
            self._reader.set_aside([(each.number, pins and self._pins(each)) for each in batch[:written]])
            self._settled()

    def _first(self) -> list[SetAside]:
        return list(islice(self._reader.ledger.to_set_aside(), 1))

    def _following(self) -> list[SetAside]:
        # After a failure one by one, because the collection may reject one of them each time.
        events_max = 1 if self._is_failing else _EVENTS_AT_ONCE
        return self._reader.ledger.to_follow(events_max=events_max, bytes_max=_BYTES_AT_ONCE)

    def _pins(self, each: SetAside) -> bool:
        # The key of an event without one is the id of its letter.
        return self._quarantine and each.key is not None and each.key != each.letter

    async def _stored(self, batch: Sequence[SetAside]) -> tuple[int, bool]:
        """Store events. Returns how many of the first, and whether their keys are quarantined if the group does that:
        not where the letter was discarded while a member had it."""
        letters, tenant, name = self._letters.letters, self._tenant, self._subscription
        written = [self._letter(each) for each in batch]
        if keys := {each.key for each in batch if each.key is not None and self._pins(each)}:
            new = len(keys - self._reader.ledger.pinned)
            # By the time of the letters, which a clock that was set back does not change: no key is free before they
            # have expired.
            await letters.quarantine(
                tenant, name, self._epoch, keys, new, max(each.failed_ms for each in written) / 1000
            )
        first = batch[0]
        if not first.letter:
            return await letters.insert(written), True
        assert first.key is not None, "letters are delivered by a key"
        if keys:
            # Before the failure can be seen: a caller who marks letters of the key from then on asks for another try.
            await self._replays.begin(first.key)
        if not await letters.failed_again(tenant, name, self._epoch, self._letter(first), first.letter):
            return 1, not (keys and await self._replays.let_go(first.key))
        if keys:
            await self._replays.stop(first.key)
        return 1, True

    def _letter(self, each: SetAside) -> DeadLetter:
        token = read_token(event_id(each.event, 0))
        return dead_letter(
            each.event,
            tenant=self._tenant,
            subscription=self._subscription,
            stream_key=self._stream_key,
            attempts=each.deliveries,
            reasons=each.reasons,
            member=each.member,
            cluster_time=token.cluster_time,
            now_s=wall_s(),
            group_key=each.key,
            place=place_of(token),
        )

    def _note_failure(self, error: FeedmuxError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning(
                "dead letters of a subscription cannot be written, and hold their keys",
                extra={"tenant": self._tenant, "subscription": self._subscription, "reason": error.reason.value},
            )
