"""pymongo's `watch` and feedmux's beside each other: every step of a scenario is taken on both and compared at once.

Four objects go in step: pymongo's and feedmux's, each synchronous and asynchronous. A scenario is written once, as
functions of one of them (`lambda stream: stream.try_next()`); what an asynchronous one returns is awaited, and a
synchronous one runs in a thread. Writes happen once, so that all four see the very same events.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import OperationFailure, PyMongoError

import feedmux
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.integration.servers import serving, settings

PATIENCE_S: Final = 20.0
PYMONGO, FEEDMUX, ASYNC_PYMONGO, ASYNC_FEEDMUX = "pymongo", "feedmux", "async pymongo", "async feedmux"
PAIRS: Final = ((PYMONGO, FEEDMUX), (ASYNC_PYMONGO, ASYNC_FEEDMUX))

Action = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception as far as a user can see it."""

    kind: str
    """`StopIteration` also for the asynchronous one."""
    words: str
    code: int | None = None
    code_name: str | None = None
    labels: tuple[str, ...] = ()
    timeout: bool = False
    details: frozenset[str] = frozenset()
    """The fields of the error's document, but for those of MongoDB's clock."""
    error: BaseException | None = field(default=None, compare=False, repr=False)


class Lockstep:
    """The same object of each of the four."""

    def __init__(self, sides: Mapping[str, Any], made: list["Lockstep"]) -> None:
        self.sides = dict(sides)
        self._made = made

    async def each(self, action: Action) -> dict[str, Any]:
        """What each returns, or the `Raised` it ended with."""
        async with asyncio.timeout(PATIENCE_S):
            outcomes = await asyncio.gather(*(_outcome(name, action, side) for name, side in self.sides.items()))
        return dict(zip(self.sides, outcomes, strict=True))

    async def make(self, action: Action) -> "Lockstep":
        """A new object of each, such as a collection or a stream; closed at the end of the test."""
        outcomes = await self.each(action)
        failed = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Raised)}
        assert not failed, failed
        made = Lockstep(outcomes, self._made)
        self._made.append(made)
        return made

    async def same(self, action: Action) -> Any:
        """What all four return: equal, and of equal types all the way down."""
        outcomes = await self.each(action)
        for theirs, ours in PAIRS:
            assert shape(outcomes[ours]) == shape(outcomes[theirs]), outcomes
        outcome = outcomes[PYMONGO]
        assert not isinstance(outcome, Raised), outcome
        return outcome

    async def refused(self, action: Action, *, words: bool = True, code: bool = True) -> Raised:
        """How all four refuse; without `words` the message is not compared, without `code` nothing but the kind."""
        outcomes = await self.each(action)
        for theirs, ours in PAIRS:
            expected, found = outcomes[theirs], outcomes[ours]
            assert isinstance(expected, Raised), outcomes
            assert isinstance(found, Raised), outcomes
            if not code:
                expected, found = Raised(expected.kind, ""), Raised(found.kind, "")
            elif not words:
                expected, found = _without_words(expected), _without_words(found)
            assert found == expected, (found, expected)
        raised: Raised = outcomes[PYMONGO]
        return raised

    async def tokens(self, last: Mapping[str, Any] | None, *, exact: bool = False) -> None:
        """`resume_token` stands at the event `last`; unless `exact`, a high-water mark after it is as good.

        Where a batch ends with an event, its postBatchResumeToken is the one or the other, as MongoDB pleases.
        """
        for name, token in (await self.each(lambda stream: stream.resume_token)).items():
            assert token is not None, name
            if last is None or _plain(token) == _plain(last["_id"]):
                continue
            assert not exact, (name, token)
            found, wanted = ResumeToken.decode(bson.encode(token)), ResumeToken.decode(bson.encode(last["_id"]))
            assert found.cluster_time >= wanted.cluster_time, (name, token)
            assert found.is_high_water_mark or found.from_invalidate, (name, token)

    async def close(self) -> None:
        """Closes what can be closed. A collection's attribute `close` would be a collection."""
        for name, side in self.sides.items():
            if hasattr(type(side), "close"):
                await _outcome(name, lambda each: each.close(), side)


async def _outcome(name: str, action: Action, side: Any) -> Any:
    if "async" in name:
        return await _awaited(action, side)
    return await asyncio.to_thread(_called, action, side)


def _called(action: Action, side: Any) -> Any:
    try:
        return action(side)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return _raised(error)


async def _awaited(action: Action, side: Any) -> Any:
    try:
        returned = action(side)
        return await returned if inspect.isawaitable(returned) else returned
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return _raised(error)


def _raised(error: Exception) -> Raised:
    kind = type(error).__name__.replace("StopAsyncIteration", "StopIteration")
    if not isinstance(error, PyMongoError):
        return Raised(kind, str(error), error=error)
    labels = tuple(sorted(error._error_labels))
    if not isinstance(error, OperationFailure):
        return Raised(kind, str(error), labels=labels, timeout=error.timeout, error=error)
    details = error.details or {}
    fields = frozenset(details) - {"$clusterTime", "operationTime", "$gleStats"}
    return Raised(kind, details["errmsg"], error.code, details.get("codeName"), labels, error.timeout, fields, error)


def _without_words(raised: Raised) -> Raised:
    return Raised(raised.kind, "", raised.code, raised.code_name, raised.labels, raised.timeout, raised.details)


def shape(value: Any) -> Any:
    """A value with the types of all its parts."""
    if isinstance(value, RawBSONDocument):
        return type(value).__name__, value.raw
    if isinstance(value, Mapping):
        return type(value).__name__, [(key, shape(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [shape(each) for each in value]
    return type(value).__name__, value


def _plain(token: Mapping[str, Any]) -> dict[str, Any]:
    return dict(token)


@dataclass(frozen=True, slots=True)
class Site:
    """A MongoDB with a feedmux before it, and clients of both."""

    mongo: MongoClient[dict[str, Any]]
    clients: Lockstep
    uri: str
    address: str

    async def collection(self, database: str, name: str, **options: Any) -> Lockstep:
        """A collection of each client."""
        return await self.clients.make(lambda client: client[database].get_collection(name, **options))


@asynccontextmanager
async def beside(mongo: ReplicaSet, redis: RedisServer) -> AsyncIterator[Site]:
    """A server on `mongo`."""
    async with serving(settings(mongo.uri, redis.url)) as here:
        address = f"127.0.0.1:{here.server.ports.data}"
        direct: MongoClient[dict[str, Any]] = MongoClient(mongo.uri)
        sides = {
            PYMONGO: direct,
            FEEDMUX: feedmux.Client(address),
            ASYNC_PYMONGO: AsyncMongoClient[dict[str, Any]](mongo.uri),
            ASYNC_FEEDMUX: feedmux.AsyncClient(address),
        }
        clients = Lockstep(sides, [])
        try:
            yield Site(direct, clients, mongo.uri, address)
        finally:
            await clients.close()


async def close_made(site: Site) -> None:
    """What a scenario has made."""
    while site.clients._made:
        await site.clients._made.pop().close()
