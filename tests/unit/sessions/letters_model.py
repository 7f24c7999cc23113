"""The collection for dead letters in memory, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from collections.abc import Collection as Several
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Self

import bson

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.dead_letter import DeadLetter
from feedmux_server.source.letters import Check, Usage
from tests.unit.rpc.service_support import NoLetters


class Collection(NoLetters):
    """A collection for dead letters that fails as a test says."""

    def __init__(self) -> None:
        self.written: dict[bytes, DeadLetter] = {}
        self.pins: dict[bytes, int] = {}
        """The quarantined keys, each with the number of the last discard of its letters that its host has not seen."""
        self._discards = 0
        self.newest: dict[bytes, tuple[str, bytes]] = {}
        """The last letters of keys of which all were discarded, until their host has seen that."""
        self.marked = set[bytes]()
        """The letters that callers have marked, to be delivered again."""
        self.replayed = set[bytes]()
        """The quarantined keys whose letters are delivered again."""
        self.keys_max = self.check_at_once = 100
        self.before: Callable[[DeadLetter], None] = lambda letter: None
        """Called before a letter is written. May raise."""

    @property
    def letters(self) -> Self:
        return self

    @property
    def keys(self) -> list[Any]:
        """The keys of the letters, in the order of their events."""
        return [bson.decode(each.key)["_id"] for each in sorted(self.written.values(), key=lambda each: each.place)]

    @asynccontextmanager
    async def writing(self, tenant: str) -> AsyncIterator[None]:
        yield

    async def usage(self, tenant: str) -> Usage:
        return Usage(len(self.written), 0, len(self.pins), 0.0)

    async def insert(self, letters: Sequence[DeadLetter]) -> int:
        for letter in letters:
            await asyncio.sleep(0.01)
            self.before(letter)
            self.written.setdefault(letter.id, letter)
        return len(letters)

    async def get(self, tenant: str, subscription: str, id_: bytes, *, with_event: bool) -> DeadLetter | None:
        await asyncio.sleep(0.01)
        return self.written.get(id_)

    async def discard(
        self, tenant: str, subscription: str, ids: Sequence[bytes], *, complete: bool | None = None
    ) -> int:
        await asyncio.sleep(0.01)
        gone = [self.written.pop(each) for each in ids if each in self.written]
        last = {each.group_key: (each.place, each.key) for each in _in_order(gone)}
        if complete is not None:
            whole = last if complete else await self.without_letters(tenant, subscription, last)
            self.newest |= {key: each for key, each in last.items() if key in whole}
        await self.check(tenant, subscription, [each.group_key for each in gone])
        return len(gone)

    async def quarantine(
        self, tenant: str, subscription: str, epoch: int, keys: Several[bytes], new: int, now_s: float
    ) -> None:
        await asyncio.sleep(0.01)
        if new and len(self.pins) + new > self.keys_max:
            raise FeedmuxError(ErrorReason.QUOTA_EXCEEDED, "quarantined_keys_max")
        self.pins = dict.fromkeys(keys, 0) | self.pins

    async def take_over(self, tenant: str, subscription: str, epoch: int) -> list[bytes]:
        return await self.quarantined(tenant, subscription)

    async def quarantined(self, tenant: str, subscription: str, *, to_replay: bool = False) -> list[bytes]:
        return [key for key in self.pins if key in self.replayed or not to_replay]

    async def without_letters(self, tenant: str, subscription: str, keys: Iterable[bytes]) -> set[bytes]:
        return set(keys) - {each.group_key for each in self.written.values()}

    async def release(self, tenant: str, subscription: str, epoch: int, keys: Sequence[bytes]) -> None:
        await asyncio.sleep(0.01)
        for key in keys:
            self.pins.pop(key, None)
            self.replayed.discard(key)

    async def check(self, tenant: str, subscription: str, keys: Sequence[bytes]) -> None:
        self._discards += 1
        self.pins |= {key: self._discards for key in keys if key in self.pins}

    async def to_check(self, tenant: str, subscription: str) -> list[Check]:
        found = [Check(key, bytes([number]), self.newest.get(key)) for key, number in self.pins.items() if number]
        return found[: self.check_at_once]

    async def checked(self, tenant: str, subscription: str, check: Check) -> None:
        if check.id == bytes([self.pins[check.key]]):
            self.pins[check.key] = 0
            self.newest.pop(check.key, None)

    def mark(self, *keys: object) -> None:
        """As ReplayDeadLetters does, for the letters of some `_id`s."""
        self.marked |= {each.id for each in self.written.values() if bson.decode(each.key)["_id"] in keys}

    async def mark_key(
        self, tenant: str, subscription: str, stream_key: bytes, epoch: int, key: bytes, *, to_replay: bool
    ) -> None:
        await asyncio.sleep(0.01)
        (self.replayed.add if to_replay else self.replayed.discard)(key)
        if to_replay:
            self.marked -= {
                each.id for each in self.written.values() if (each.stream_key, each.group_key) == (stream_key, key)
            }

    async def mark_letters(self, tenant: str, subscription: str, stream_key: bytes, keys: Sequence[bytes]) -> None:
        self.replayed.difference_update(keys)
        self.marked |= {
            each.id for each in self.written.values() if each.stream_key == stream_key and each.group_key in keys
        }

    async def failed_again(self, tenant: str, subscription: str, letter: DeadLetter, id_: bytes) -> bool:
        await asyncio.sleep(0.01)
        if id_ not in self.written:
            return False
        self.written[id_] = replace(
            self.written[id_], attempts=letter.attempts, reasons=letter.reasons, failures=0, losses=0
        )
        self.marked.discard(id_)
        return True

    async def failed_in_replay(self, tenant: str, subscription: str, failures: dict[bytes, tuple[int, int]]) -> None:
        await asyncio.sleep(0.01)
        for id_, (failed, losses) in failures.items():
            self.written[id_] = replace(self.written[id_], failures=failed, losses=losses)

    async def to_replay(
        self, tenant: str, subscription: str, stream_key: bytes, most: int, *, after: bytes
    ) -> list[DeadLetter]:
        await asyncio.sleep(0.01)
        return [
            each
            for each in self._in_order()
            if each.id in self.marked and each.stream_key == stream_key and each.group_key > after
        ][:most]

    async def of_group_key(self, tenant: str, subscription: str, key: bytes, most: int) -> list[DeadLetter]:
        await asyncio.sleep(0.01)
        return _in_order(each for each in self.written.values() if each.group_key == key)[:most]

    def _in_order(self) -> list[DeadLetter]:
        return _in_order(self.written.values())


def _in_order(letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    return sorted(letters, key=lambda each: (each.group_key, each.place, each.id))
