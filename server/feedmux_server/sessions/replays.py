"""Delivers dead letters again, as events of their keys, where a caller of ReplayDeadLetters has marked them.

The letters of a quarantined key are delivered in order, all of them, and then the key is quarantined no longer: when
the last ones are loaded, the key's events that have arrived meanwhile wait behind them in the ledger. The document that
says that the key is quarantined, and that its letters are delivered again, is deleted when these letters are. So after
a crash, the next host finds either the document and the letters that are left, or neither.

What a caller has marked is looked for every `LOOK_S`, less often where a tenant has many groups, and at once when
letters were deleted. Few letters are in memory at a time, beside those that have failed and wait for another try: these
stop no letter of another key.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, NamedTuple

from feedmux_server.clock import monotonic_s, wall_s
from feedmux_server.core.delivery.group_reader import GroupReader
from feedmux_server.core.delivery.key_ledger import RUN_MAX, Stored
from feedmux_server.core.events.dead_letter import DeadLetter
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.source.letters import CHECK_AT_ONCE

LOOK_S: Final = 5.0
LETTERS_MAX: Final = 200
"""No more are loaded while so many are, without those whose keys rest (`KeyLedger.resting`)."""
ALL_LETTERS_MAX: Final = 5_000
"""The same with those. At most half of what the group may have unsettled, so that it reads on."""
ALL_BYTES_MAX: Final = 8 << 20
"""The same in bytes: an eighth of the quota `outstanding_bytes` by default."""
BYTES_AT_ONCE: Final = 1 << 20
"""The most bytes that are loaded at a time, give or take one letter."""
_UNPINNED_AT_ONCE: Final = 200
_VISITED_AT_ONCE: Final = 1_000
"""The most quarantined keys that are examined in one turn of the event loop: a third of a millisecond."""
_PAGES_MAX: Final = 5
"""How many times `LETTERS_MAX` marked letters are looked through at most, for one that may be loaded."""
_REREAD_S: Final = 600.0
"""How soon it is noticed that a key has no letters any more of which nobody has said so: they have expired."""


class HostedGroup(NamedTuple):
    """The group whose letters they are, and its present host."""

    tenant: str
    subscription: str
    stream_key: bytes
    epoch: int


class Replays:
    """Of one group. Its methods are called by one task."""

    def __init__(
        self,
        group: HostedGroup,
        reader: GroupReader,
        settled: Callable[[], None],
        letters: DeadLetters,
        has_lost: Callable[[int], bool],
        *,
        quarantine: bool,
    ) -> None:
        """`has_lost` says whether MongoDB was restored to before the event of this cluster time: that has not happened
        in the history that is left, so its letter is withheld."""
        self._of = group.tenant, group.subscription
        self._stream_key = group.stream_key
        self._epoch = group.epoch
        self._reader = reader
        self._settled = settled
        self._letters = letters
        self._has_lost = has_lost
        self._quarantine = quarantine
        self._keys = set[bytes]()
        """The quarantined keys whose letters are delivered again now."""
        self._after = b""
        """The group key after which marked letters are looked for: none before it, or of it, could be loaded."""
        self._knows_keys = False
        """Whether it knows those that an earlier host has begun with."""
        self._reread_s = monotonic_s()
        """At once, because a host that was lost may have left such keys."""

    async def begin(self, key: bytes) -> None:
        """Deliver the letters of a quarantined key again. What callers have marked of them is not marked any longer."""
        await self._letters.letters.mark_key(*self._of, self._stream_key, self._epoch, key, to_replay=True)
        self._keys.add(key)

    async def stop(self, key: bytes) -> None:
        """A letter of a quarantined key has failed again, or is withheld. What callers have marked meanwhile stays
        marked."""
        await self._letters.letters.mark_key(*self._of, self._stream_key, self._epoch, key, to_replay=False)
        self._keys.discard(key)

    async def delete(self) -> bool:
        """Delete the letters that members have processed. Returns whether others may be loaded."""
        ledger, letters = self._reader.ledger, self._letters.letters
        replayed = dict(islice(ledger.replayed.items(), LETTERS_MAX))
        await letters.discard(*self._of, [letter for letter, _ in replayed.values()])
        done = [
            key.name
            for key, count in Counter(key for _, key in replayed.values()).items()
            if key.name in self._keys and key.name not in ledger.pinned and key.letters == count
        ]
        if done:
            await letters.release(*self._of, self._epoch, done)
            self._keys.difference_update(done)
        self._reader.deleted(replayed)
        self._settled()
        return self._has_room(LETTERS_MAX // 2)

    def _has_room(self, most: int) -> bool:
        """Whether fewer than `most` letters are loaded, without those whose keys rest."""
        ledger = self._reader.ledger
        count = ledger.loaded_letters
        if count < most:
            return True
        fits = count < min(ALL_LETTERS_MAX, ledger.outstanding_max // 2) and ledger.letter_bytes < ALL_BYTES_MAX
        return fits and count - ledger.resting_letters < most

    async def note_failures(self) -> None:
        """Store how often letters have failed since they are delivered again: the next host continues with that."""
        failed = self._reader.ledger.failed_letters
        stored = dict(islice(failed.items(), LETTERS_MAX))
        letters = self._letters.letters
        async with letters.writing(self._of[0]):
            await letters.failed_in_replay(*self._of, self._epoch, stored)
        for letter, tries in stored.items():
            if failed.get(letter) == tries:
                del failed[letter]
        self._settled()

    async def let_go(self, key: bytes) -> bool:
        """A letter of a key has failed again that was discarded meanwhile. Release the key if it has no other letter.
        Returns whether it is released."""
        letters = self._letters.letters
        if not await letters.without_letters(*self._of, [key]):
            return False
        await letters.release(*self._of, self._epoch, [key])
        self._unpin(key)
        return True

    async def look(self) -> bool:
        """Find what is to be delivered again, and the keys that have no letters any more. Returns whether there are
        more such keys."""
        more = self._quarantine and bool(self._reader.ledger.pinned) and await self._check()
        await self._load()
        return more

    async def _load(self) -> None:
        """Find what is to be delivered again."""
        letters, ledger = self._letters.letters, self._reader.ledger
        await letters.usage(self._of[0])  # for the metric alone: it may not know yet what another server has written
        if not ledger.may_replay:
            return
        if not self._knows_keys:
            keys = await letters.quarantined(*self._of, to_replay=True)
            if self._quarantine:
                self._keys.update(keys)
            else:  # the group has changed meanwhile, and replays single letters now
                await letters.mark_letters(*self._of, self._stream_key, self._epoch, keys)
            self._knows_keys = True
        if not self._has_room(LETTERS_MAX):
            return
        marked = await self._marked()
        pinned = await self._waiting(dict.fromkeys((*self._keys, *(each.group_key for each in marked))))
        others = [each for each in marked if each.group_key not in ledger.pinned]
        if not pinned and not others:
            return
        async with letters.writing(self._of[0]):
            for name, stored in (await self._stored(_within(others))).items():
                if ledger.may_replay:
                    self._reader.replay(name, stored, wall_s(), last=False)
            for name in pinned:
                if not ledger.may_replay or not self._has_room(LETTERS_MAX):
                    break
                await self._load_key(name)

    async def _marked(self) -> list[DeadLetter]:
        """Some letters that callers have marked and that may be loaded. Further letters of a key that rests would wait,
        too, and those of a key that is replayed come with it. Both may be thousands, so they are passed in pages, and
        the next look continues where this one ends."""
        letters, ledger = self._letters.letters, self._reader.ledger
        loaded = ledger.loaded
        for _ in range(_PAGES_MAX):
            began = self._after
            page = await letters.to_replay(*self._of, self._stream_key, LETTERS_MAX, after=began)
            found = [
                each
                for each in page
                if each.id not in loaded
                and not self._has_lost(each.cluster_time)
                and each.group_key not in self._keys
                and each.group_key not in ledger.resting
                and not (each.group_key in ledger.pinned and ledger.replays(each.group_key))
            ]
            if found:
                return found
            self._after = page[-1].group_key if len(page) == LETTERS_MAX else b""
            if not began and not self._after:
                break
        return []

    async def _waiting(self, names: Iterable[bytes]) -> list[bytes]:
        """The first quarantined keys among these of which letters may be loaded: as many as fit into one look."""
        ledger, found = self._reader.ledger, list[bytes]()
        for number, name in enumerate(names, 1):
            if name in ledger.pinned and not ledger.replays(name):
                found.append(name)
                if len(found) == LETTERS_MAX:
                    break
            if not number % _VISITED_AT_ONCE:
                await asyncio.sleep(0)
        return found

    async def _load_key(self, name: bytes) -> None:
        """Load the first letters of a quarantined key."""
        letters, ledger = self._letters.letters, self._reader.ledger
        if name not in self._keys:
            await self.begin(name)
        found = await letters.of_group_key(*self._of, name, RUN_MAX)
        if not found:
            await letters.release(*self._of, self._epoch, [name])
            self._unpin(name)
            return
        own = _within(found)
        withheld = next((index for index, each in enumerate(own) if self._withholds(each)), len(own))
        if not withheld:
            await self.stop(name)
            return
        stored = await self._stored(own[:withheld])
        if stored and ledger.may_replay:
            last = withheld == len(found) < RUN_MAX
            self._reader.replay(name, stored[name], wall_s(), last=last)

    def _withholds(self, letter: DeadLetter) -> bool:
        return letter.stream_key != self._stream_key or self._has_lost(letter.cluster_time)

    async def _stored(self, letters: list[DeadLetter]) -> dict[bytes, list[Stored]]:
        """These letters with their events, by group key."""
        found: dict[bytes, list[Stored]] = {}
        with self._reader.ledger.loading(sum(each.event_bytes for each in letters)):
            for each in letters:
                letter = await self._letters.letters.get(*self._of, each.id, with_event=True)
                if letter is not None:  # otherwise it was discarded meanwhile
                    stored = Stored(each.id, letter.event, letter.attempts, letter.failures, letter.losses)
                    found.setdefault(each.group_key, []).append(stored)
        return found

    async def _check(self) -> bool:
        """Unpin the keys whose letters were discarded, or have expired. If others were set aside meanwhile, deliver
        them first. Returns whether there are more to check."""
        letters, ledger = self._letters.letters, self._reader.ledger
        checks = await letters.to_check(*self._of)
        free = await letters.without_letters(*self._of, [each.key for each in checks])
        if free:
            await letters.release(*self._of, self._epoch, list(free))
        for check in checks:
            if check.key in free:
                self._unpin(check.key)
                continue
            found = await letters.of_group_key(*self._of, check.key, 1)
            if not found:
                continue  # the last ones were discarded meanwhile, so it is to be checked again
            if check.came_later(found[0]):  # and would come each time, in a key that changes often
                await self.begin(check.key)
            await letters.checked(*self._of, check)
        if monotonic_s() >= self._reread_s:
            kept = set(await letters.quarantined(*self._of))
            # Whoever dies between two writes leaves a quarantined key without letters, and nothing that says so.
            if empty := await letters.without_letters(*self._of, kept):
                await letters.release(*self._of, self._epoch, list(empty))
                kept -= empty
            self._reread_s = monotonic_s() + _REREAD_S
            for number, gone in enumerate(ledger.pinned - kept, 1):
                self._unpin(gone)
                if not number % _UNPINNED_AT_ONCE:
                    await asyncio.sleep(0)
        return len(checks) == CHECK_AT_ONCE

    def _unpin(self, name: bytes) -> None:
        self._keys.discard(name)
        self._reader.unpin(name)
        self._settled()


def _within(letters: list[DeadLetter]) -> list[DeadLetter]:
    """The first of these letters that are loaded together."""
    size = 0
    for index, each in enumerate(letters):
        size += each.event_bytes
        if index and size > BYTES_AT_ONCE:
            return letters[:index]
    return letters
