"""The collection for dead letters in memory: what a majority has, and what only the primary has.

`source.letters` is the real one; this module replaces pymongo's collection.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextvars import Context
from operator import ge, gt, le, lt
from types import SimpleNamespace
from typing import Any, Final

import bson
from pymongo import UpdateOne
from pymongo.errors import AutoReconnect, BulkWriteError
from pymongo.results import DeleteResult

from feedmux_server.source.commands import SourceCommands
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.source.letters import Letters, LettersPlace
from feedmux_server.telemetry.observer import NOBODY
from tests.sim.mongo import FAILINGS, SimMongo, SimSource

_COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
WAIT_S: Final = 5.0
PLACE: Final = LettersPlace("feedmux", "dead_letters", 86_400.0, 1 << 30, 100_000, 1_000)


class SimLetters:
    """The collection."""

    def __init__(self, mongo: SimMongo) -> None:
        self.mongo = mongo
        self.stored: Callable[[dict[str, Any]], None] = lambda letter: None
        """Called when a majority has a letter, also when its event has failed again."""
        self.removed: Callable[[dict[str, Any]], None] = lambda letter: None
        """Called when a letter is deleted."""
        self.failing = 0.0
        """The share of the commands that fail, before they have an effect or after it."""
        self.away = False
        self.lag_s = 0.01
        """The time until a majority has a letter."""
        self.release_s = 0.0
        """The time until the primary releases a quarantined key, also if the server that asked for it is gone then."""
        self.releasing = 0
        """How many such commands there were."""
        self._primary: dict[bytes, dict[str, Any]] = {}
        self._majority: dict[bytes, dict[str, Any]] = {}

    def roll_back(self) -> None:
        """The primary is replaced, and only what a majority has remains."""
        self._primary = dict(self._majority)

    def dead_letters(self) -> DeadLetters:
        """What a server uses."""
        return DeadLetters(_LettersSource(self), PLACE, "", {})

    def of(self, tenant: str, subscription: str) -> list[dict[str, Any]]:
        """The letters of a group that a majority has."""
        return [
            each
            for each in self._majority.values()
            if "event_bytes" in each and (each["tenant"], each["subscription"]) == (tenant, subscription)
        ]

    def held_for_nothing(self, tenant: str, subscription: str) -> list[bytes]:
        """The quarantined keys whose letters were all set aside because of one that is there no more, of which the host
        need not find that out, and which nobody delivers again."""
        held, letters = list[bytes](), self.of(tenant, subscription)
        for each in self.pins(tenant, subscription):
            own = [letter for letter in letters if letter["group_key"] == each["_id"]["key"]]
            first = min(own, key=lambda letter: letter["place"], default=None)
            if first and not (first["attempts"] or each.get("check") or each.get("replay")):
                held.append(bytes(each["_id"]["key"]))
        return held

    def pins(self, tenant: str, subscription: str) -> list[dict[str, Any]]:
        """The quarantined keys of a group, as far as a majority knows."""
        own = {"tenant": tenant, "subscription": subscription}
        return [each for each in self._majority.values() if each.get("pins") == own]

    # What `Letters` asks of pymongo.

    def __getitem__(self, database: str) -> "SimLetters":
        return self

    def get_collection(self, name: str, **_: Any) -> "_View":
        return _View(self, is_majority=False)

    async def unfit(self) -> None:
        """There is no such collection yet."""
        await self._way()

    async def insert(self, documents: Sequence[dict[str, Any]]) -> None:
        """Insert those that are not there, and wait until a majority has them."""
        await self._way()
        owns = [bson.encode(each["_id"]) for each in documents]
        there = [index for index, own in enumerate(owns) if own in self._primary]
        new = [(own, each) for own, each in zip(owns, documents, strict=True) if own not in self._primary]
        self._primary.update(new)
        await self._after_lag(lambda: self._replicate([own for own, _ in new], is_news=True))
        if any(own not in self._majority for own, _ in new):
            raise FAILINGS[1].make()
        await self._way()
        for index in there:
            if owns[index] in self._majority:
                self.stored(self._majority[owns[index]])  # an event that has a letter was delivered again
        if there:
            errors = [{"index": index, "code": 11000} for index in there]
            raise BulkWriteError({"writeErrors": errors, "writeConcernErrors": []})

    async def found(self, wanted: dict[str, Any], *, is_majority: bool = False) -> list[dict[str, Any]]:
        await self._way()
        documents, own = self._majority if is_majority else self._primary, wanted.get("_id")
        if isinstance(own, dict) and not any(name.startswith("$") for name in own):
            documents = {key: documents[key] for key in [bson.encode(own)] if key in documents}
        return [each for each in documents.values() if _matches(each, wanted)]

    async def updated(self, wanted: dict[str, Any], change: dict[str, Any], *, upsert: bool = False) -> tuple[int, int]:
        """Change all that match. Returns how many there were, and how many were inserted."""
        found, owns = await self.found(wanted), list[bytes]()
        for each in found or ([{"_id": wanted["_id"]}] if upsert else []):
            new = {name: value for name, value in each.items() if name not in change.get("$unset", {})}
            new |= change.get("$set", {})
            new |= {name: max(value, each.get(name, value)) for name, value in change.get("$max", {}).items()}
            own = bson.encode(each["_id"])
            self._primary[own] = new
            owns.append(own)
        await self._after_lag(lambda: self._replicate(owns, is_news="failed_at" in change.get("$set", {})))
        if any(own not in self._majority for own in owns):
            raise FAILINGS[1].make()
        return len(found), int(upsert and not found)

    async def deleted(self, wanted: dict[str, Any]) -> int:
        """Delete all that match, and wait until a majority has done so. Returns how many there were."""
        await self._way()
        found = dict[bytes, dict[str, Any]]()

        def at_primary() -> None:
            found.update((own, each) for own, each in self._primary.items() if _matches(each, wanted))
            for own in found:
                del self._primary[own]

        if self.release_s and "turn" in wanted and "_id" in wanted:
            self.releasing += 1
            await self._after(self.release_s, at_primary)
        else:
            at_primary()

        def replicated() -> None:
            for own, each in found.items():
                if own not in self._primary and self._majority.pop(own, None) is not None and "event_bytes" in each:
                    self.removed(each)

        await self._after_lag(replicated)
        return len(found)

    def _replicate(self, owns: list[bytes], *, is_news: bool) -> None:
        """A majority applies a write of these documents. `is_news`: it says that events are set aside."""
        for own in owns:
            document = self._primary.get(own)
            if document is not None:
                is_new = own not in self._majority
                self._majority[own] = document
                if "event_bytes" in document and (is_news or is_new):
                    self.stored(document)

    async def _after_lag(self, replicated: Callable[[], None]) -> None:
        """Call `replicated` when a majority has applied a write."""
        await self._after(self.lag_s, replicated)

    async def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Call `act` later, also if the server that waits for it is killed meanwhile."""
        applied = asyncio.get_running_loop().create_future()

        def apply() -> None:
            act()
            if not applied.done():
                applied.set_result(None)

        self.mongo.loop.call_later(delay_s, apply, context=Context())
        await applied

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

    async def insert_many(self, documents: Sequence[dict[str, Any]], **_: Any) -> None:
        await self._letters.insert(documents)

    async def find_one(self, wanted: dict[str, Any], _: Any = None, **__: Any) -> dict[str, Any] | None:
        found = await self._letters.found(wanted, is_majority=self._is_majority)
        return found[0] if found else None

    def find(
        self, wanted: dict[str, Any], _: Any = None, *, sort: Sequence[tuple[str, int]] = (), limit: int = 0, **__: Any
    ) -> "_Finding":
        return _Finding(self._letters, wanted, [name for name, _ in sort], limit)

    async def count_documents(self, wanted: dict[str, Any], **_: Any) -> int:
        return len(await self._letters.found(wanted, is_majority=self._is_majority))

    async def delete_many(self, wanted: dict[str, Any]) -> DeleteResult:
        return DeleteResult({"n": await self._letters.deleted(wanted)}, acknowledged=True)

    async def update_many(self, wanted: dict[str, Any], change: dict[str, Any]) -> Any:
        matched, _ = await self._letters.updated(wanted, change)
        return SimpleNamespace(matched_count=matched)

    update_one = update_many

    async def bulk_write(self, updates: Sequence[UpdateOne], **_: Any) -> Any:
        done = [await self._letters.updated(each._filter, each._doc, upsert=bool(each._upsert)) for each in updates]  # type: ignore[arg-type]
        matched, inserted = map(sum, zip(*done, strict=True))
        return SimpleNamespace(matched_count=matched, upserted_count=inserted)

    async def aggregate(self, stages: list[dict[str, Any]], **_: Any) -> "_Listed":
        found = await self._letters.found(stages[0]["$match"], is_majority=self._is_majority)
        if stages[-1]["$group"]["_id"] == "$group_key":
            return _Listed([{"_id": each} for each in {each["group_key"] for each in found}])
        counted = {"letters": len(found), "bytes": sum(each.get("bytes", 0) for each in found)}
        return _Listed([counted] if found else [])


class _Listed:
    def __init__(self, found: Iterable[dict[str, Any]]) -> None:
        self._found = list(found)

    async def to_list(self) -> list[dict[str, Any]]:
        return self._found


class _Finding:
    """A cursor."""

    def __init__(self, letters: SimLetters, wanted: dict[str, Any], order: list[str], limit: int) -> None:
        self._letters = letters
        self._wanted = wanted
        self._order = order
        self._limit = limit

    async def to_list(self) -> list[dict[str, Any]]:
        found = await self._letters.found(self._wanted)
        found.sort(
            key=lambda each: [bson.encode({"": each[name]}) if name == "_id" else each[name] for name in self._order]
        )
        return found[: self._limit or None]

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        for each in await self.to_list():
            yield each

    async def __aenter__(self) -> "_Finding":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def _matches(document: dict[str, Any], wanted: dict[str, Any]) -> bool:
    # The last one is the most particular.
    for name, condition in reversed(wanted.items()):
        if name in ("$or", "$nor"):
            if any(_matches(document, each) for each in condition) is not (name == "$or"):
                return False
        elif not _fits(_value_at(document, name), condition):
            return False
    return True


def _value_at(document: dict[str, Any], path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _fits(value: Any, condition: Any) -> bool:
    if isinstance(condition, dict) and any(name.startswith("$") for name in condition):
        for name, operand in condition.items():
            if name in _COMPARED:
                if value is None or not _COMPARED[name](value, operand):
                    return False
                continue
            found = any(_equal(value, each) for each in (operand if name in ("$in", "$nin") else [operand]))
            if found is not (name == "$in"):
                return False
        return True
    return _equal(value, condition)


def _equal(one: Any, other: Any) -> bool:
    if type(one) is type(other) and isinstance(one, str | bytes):
        return bool(one == other)
    return bson.encode({"": one}) == bson.encode({"": other})


class _LettersSource(SimSource):
    def __init__(self, letters: SimLetters) -> None:
        super().__init__(letters.mongo)
        self._stored = letters

    def letters(self, place: LettersPlace) -> Letters:
        commands = SourceCommands("letters", self._stored, WAIT_S, NOBODY)  # type: ignore[arg-type]
        letters = Letters(commands, place)
        letters.unfit = self._stored.unfit  # type: ignore[method-assign]
        return letters
