"""The collection for dead letters in memory: what a majority has, and what only the primary has.

`source.letters` is the real one; this module replaces pymongo's collection.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, Final

import bson
from pymongo.errors import AutoReconnect, DuplicateKeyError
from pymongo.results import DeleteResult

from feedmux_server.source.commands import SourceCommands
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.source.letters import Letters, LettersPlace
from feedmux_server.telemetry.observer import NOBODY
from tests.sim.mongo import FAILINGS, SimMongo, SimSource

WAIT_S: Final = 5.0
_PLACE: Final = LettersPlace("feedmux", "dead_letters", 86_400.0, 1 << 30, 100_000)


class SimLetters:
    """The collection."""

    def __init__(self, mongo: SimMongo) -> None:
        self.mongo = mongo
        self.stored: Callable[[dict[str, Any]], None] = lambda letter: None
        """Called when a majority has a letter."""
        self.failing = 0.0
        """The share of the commands that fail, before they have an effect or after it."""
        self.away = False
        self.lag_s = 0.01
        """The time until a majority has a letter."""
        self._primary: dict[bytes, dict[str, Any]] = {}
        self._majority: dict[bytes, dict[str, Any]] = {}

    def roll_back(self) -> None:
        """The primary is replaced, and only what a majority has remains."""
        self._primary = dict(self._majority)

    def dead_letters(self) -> DeadLetters:
        """What a server uses."""
        return DeadLetters(_LettersSource(self), _PLACE, "", {})

    # What `Letters` asks of pymongo.

    def __getitem__(self, database: str) -> "SimLetters":
        return self

    def get_collection(self, name: str, **_: Any) -> "_View":
        return _View(self, is_majority=False)

    async def insert(self, document: dict[str, Any]) -> None:
        own = bson.encode(document["_id"])
        await self._way()
        if own in self._primary:
            raise DuplicateKeyError("duplicate key", 11000)
        self._primary[own] = document
        applied = asyncio.get_running_loop().create_future()

        def replicated() -> None:
            if self._primary.get(own) is document:
                self._majority[own] = document
                self.stored(document)
            if not applied.done():
                applied.set_result(None)

        self.mongo.loop.call_later(self.lag_s, replicated, context=Context())
        await applied
        if own not in self._majority:
            raise FAILINGS[1].make()
        await self._way()

    async def found(self, wanted: dict[str, Any], *, is_majority: bool) -> list[dict[str, Any]]:
        """Those whose fields are equal to the wanted ones."""
        await self._way()
        documents = self._majority if is_majority else self._primary
        return [each for each in documents.values() if all(each.get(name) == wanted[name] for name in wanted)]

    async def deleted(self, own: Iterable[bytes]) -> int:
        """Delete letters by their encoded `_id`; returns how many there were."""
        await self._way()
        found = [each for each in own if self._primary.pop(each, None) is not None]
        for each in found:
            self._majority.pop(each, None)
        return len(found)

    async def _way(self) -> None:
        while self.away:
            await asyncio.sleep(0.5)
        await self.mongo.way(2)
        if self.failing and self.mongo._rng.random() < self.failing:
            raise AutoReconnect("connection closed")


class _View:
    """The collection with a read concern."""

    def __init__(self, letters: SimLetters, *, is_majority: bool) -> None:
        self._letters = letters
        self._is_majority = is_majority

    def with_options(self, **_: Any) -> "_View":
        return _View(self._letters, is_majority=True)

    async def create_indexes(self, _: Any) -> None:
        await self._letters._way()

    async def insert_one(self, document: dict[str, Any]) -> None:
        await self._letters.insert(document)

    async def find_one(self, wanted: dict[str, Any], _: Any = None, **__: Any) -> dict[str, Any] | None:
        found = await self._letters.found(wanted, is_majority=self._is_majority)
        return found[0] if found else None

    def find(self, wanted: dict[str, Any], _: Any = None, **__: Any) -> "_Finding":
        return _Finding(self._letters, {"tenant": wanted["tenant"], "subscription": wanted["subscription"]})

    async def delete_many(self, wanted: dict[str, Any]) -> DeleteResult:
        own = [bson.encode(each) for each in wanted["_id"]["$in"]]
        return DeleteResult({"n": await self._letters.deleted(own)}, acknowledged=True)

    async def aggregate(self, stages: list[dict[str, Any]], **_: Any) -> "_Listed":
        found = await self._letters.found(stages[0]["$match"], is_majority=self._is_majority)
        counted = {"letters": len(found), "bytes": sum(each.get("bytes", 0) for each in found)}
        return _Listed([counted] if found else [])


class _Listed:
    def __init__(self, found: Iterable[dict[str, Any]]) -> None:
        self._found = list(found)

    async def to_list(self) -> list[dict[str, Any]]:
        return self._found


class _Finding:
    """A cursor of the letters of a subscription."""

    def __init__(self, letters: SimLetters, wanted: dict[str, Any]) -> None:
        self._letters = letters
        self._wanted = wanted

    async def to_list(self) -> list[dict[str, Any]]:
        return await self._letters.found(self._wanted, is_majority=False)


class _LettersSource(SimSource):
    def __init__(self, letters: SimLetters) -> None:
        super().__init__(letters.mongo)
        self._stored = letters

    def letters(self, place: LettersPlace) -> Letters:
        commands = SourceCommands("letters", self._stored, WAIT_S, NOBODY)  # type: ignore[arg-type]
        return Letters(commands, place)
