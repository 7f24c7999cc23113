"""One MongoDB deployment that feeds come from: its client, its identity, its clock.

Owned by `app` for the life of the process; readers open cursors on it. Nothing above `source` sees pymongo.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any, TypeVar

import bson
from bson.binary import UUID_SUBTYPE, Binary
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient
from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import make_read_preference, read_pref_mode_from_name
from pymongo.uri_parser import parse_uri

from feedmux_server.cancellation import cancellable
from feedmux_server.core.check_result import Level, failures
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec
from feedmux_server.core.limits.oplog_forecast import OplogState
from feedmux_server.source.catchup_limiter import CatchupLimiter
from feedmux_server.source.checks import judge_hello
from feedmux_server.source.cursor import RawChangeStreamCursor, aggregate_on, run_on
from feedmux_server.source.errors import as_error
from feedmux_server.source.read_watch import Address, Operation, ReadWatch
from feedmux_server.telemetry.observer import NOBODY, Observer, Span

RETRY_AFTER_S = 2.0
_AUTHENTICATION_FAILED = 18
_CLOSE_WAIT_S = 1.0
_UNAUTHORIZED = 13
_SHARDS_DIFFER_S = 5
"""The most by which the clocks of shards and of a mongos may differ."""

T = TypeVar("T")

_OF_OPERATIONS = (
    "opid", "active", "numYields", "waitingForLock", "lsid.id", "shard", "cursor.cursorId", "command.aggregate",
)  # fmt: skip
"""Fields requested from $currentOp. None holds client input: a pipeline may hold values that the driver rejects."""
# The user's values go to MongoDB unchanged, including dates that Python has no type for.
_AS_GIVEN = CodecOptions(document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_AUTO)


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """A deployment as the operator named it."""

    name: str
    uri: str
    source_id: str = ""
    """The id in positions. Empty: the replica set's own id, or its name if the account may not read the id."""
    server_selection_timeout_ms: int = 10_000
    connect_timeout_ms: int = 5_000
    history_reads: int = 2
    """Reads of history that are under way at a time."""


@dataclass(frozen=True, slots=True)
class Clock:
    """See `Source.operation_time` and `Source.latest_time`."""

    operation_time: int
    latest_time: int


class Source:
    """A connected MongoDB deployment."""

    def __init__(
        self,
        config: SourceConfig,
        observer: Observer = NOBODY,
        client: AsyncMongoClient[Mapping[str, Any]] | None = None,
    ) -> None:
        """`client` is by default a new one for `uri`, which connects at the first command."""
        self.name = config.name
        self.observer = observer
        self._config = config
        self._client = _new_client(config) if client is None else client
        self._source_id = config.source_id
        self.connected = False
        """Whether it has once been found fit for change streams."""
        self.history_reads = CatchupLimiter(config.history_reads)
        self.read_watch = ReadWatch(self)
        self.cursors = 0
        """Change streams that readers hold open now."""
        self.known_time = 0
        """The highest cluster time that this process has seen of the deployment since it last asked for it."""
        self._oplog_measurable = True
        self.is_mongos = False
        """False until the deployment has answered."""
        self._ping: asyncio.Task[Clock] | None = None
        self._next_ping: asyncio.Task[Clock] | None = None

    @property
    def source_id(self) -> str:
        """Raises SOURCE_UNAVAILABLE while the deployment has not been reached since the start."""
        if not self._source_id:
            raise FeedmuxError(
                ErrorReason.SOURCE_UNAVAILABLE,
                f"MongoDB of source {self.name!r} has not been reached since this server started",
                retry_after_s=RETRY_AFTER_S,
            )
        return self._source_id

    async def connect(self) -> tuple[str, ...]:
        """Check that the deployment can serve change streams, and return warnings. Raises FeedmuxError with advice."""
        try:
            hello = await self._client.admin.command("hello")
            self._clock_of(hello, self.known_time)
            found = judge_hello(self.name, hello, await self._client.admin.command("buildInfo"))
            if refused := failures(found):
                raise FeedmuxError(ErrorReason.SOURCE_UNSUITABLE, "\n".join(str(each) for each in refused))
            if not self._source_id:
                self._source_id = await self._own_id(hello)
        except ConnectionFailure as error:
            raise FeedmuxError(
                ErrorReason.SOURCE_UNAVAILABLE,
                f"MongoDB of source {self.name!r} at {self._hosts()} was not reached within"
                f" {self._config.server_selection_timeout_ms / 1000:g} s. Check sources.{self.name}.uri (hosts,"
                " replicaSet, TLS) and that MongoDB runs, or allow it more time with"
                f" sources.{self.name}.server_selection_timeout_ms",
            ) from error
        except OperationFailure as error:
            if error.code != _AUTHENTICATION_FAILED:
                raise self.unavailable(error) from error
            raise FeedmuxError(
                ErrorReason.SOURCE_UNAUTHORIZED,
                f"MongoDB of source {self.name!r} rejects the user or password. Check user, password"
                f" (percent-encoded) and authSource in sources.{self.name}.uri",
            ) from error
        except PyMongoError as error:
            raise self.unavailable(error) from error
        self.connected = True
        return tuple(str(each) for each in found if each.level is Level.WARNING)

    def _hosts(self) -> str:
        """Return the hosts of the URI, without its credentials, for messages to the operator."""
        if "+srv" in self._config.uri.partition(":")[0]:
            return self._config.uri.rpartition("@")[2].partition("/")[0]
        return ",".join(f"{host}:{port}" for host, port in parse_uri(self._config.uri)["nodelist"])

    async def close(self) -> None:
        if pings := [ping for ping in (self._ping, self._next_ping) if ping is not None]:
            for ping in pings:
                ping.cancel()
            await asyncio.wait(pings, timeout=_CLOSE_WAIT_S)  # pymongo may have swallowed the cancellation
        await self._client.close()

    def unavailable(self, error: PyMongoError) -> FeedmuxError:
        return as_error(error, f"source {self.name!r}", RETRY_AFTER_S)

    async def operation_time(self) -> int:
        """The deployment's present operation time (seconds << 32 | increment), asked after this call began."""
        return (await self._clock()).operation_time

    async def latest_time(self) -> int:
        """The highest cluster time that a token or a start may name now, asked after this call began.

        One after the operation time, where `latest` begins, is in any case: MongoDB gives no lower one to the next
        write. An idle replica set writes a no-op only every 10 s, so MongoDB's own clock counts too, by which it gives
        the next write its time; not the clock of this machine. A mongos that was idle does not know the newest time
        of the shards, whose clocks may differ from its own by a little.
        """
        return (await self._clock()).latest_time

    def saw(self, cluster_time: int) -> None:
        """Note a cluster time that MongoDB has reported."""
        if cluster_time > self.known_time:
            self.known_time = cluster_time

    async def _clock(self) -> "Clock":
        """Callers share a round trip, but never one that was under way before they asked: what was acknowledged
        to them before must lie before the answer.
        """
        if self._ping is None:
            self._ping = self._pinging(self._ask_time())
            return await asyncio.shield(self._ping)
        if self._next_ping is None:
            self._next_ping = self._pinging(self._ask_time_after(self._ping))
        return await asyncio.shield(self._next_ping)

    async def oldest_time(self) -> int:
        """Cluster time of the oldest entry in the oplog. Raises FeedmuxError where it may not be read."""
        with self._span("find", "local", "oplog.rs"):
            return await self._asked(self._oldest())

    async def oplog(self) -> OplogState:
        """Check the oplog. Raises FeedmuxError if MongoDB is unavailable, rejects the read, or is a mongos."""
        return await self._asked(self._look_at_oplog())

    async def databases(self) -> list[str]:
        """Names of all databases. Raises FeedmuxError where they may not be listed."""
        with self._span("listDatabases", "admin"):
            return await self._asked(self._client.list_database_names())

    async def collections(self, database: str) -> dict[str, bool]:
        """The collections of a database, and whether pre- and post-images are stored. Raises as `databases` does."""
        with self._span("listCollections", database):
            return await self._asked(self._list(database))

    async def _list(self, database: str) -> dict[str, bool]:
        listed = await self._client[database].list_collections(filter={"type": "collection"})
        return {
            each["name"]: bool(each.get("options", {}).get("changeStreamPreAndPostImages", {}).get("enabled"))
            async for each in listed
        }

    async def open_cursor(
        self,
        spec: FeedSpec,
        stages: list[Any],
        batch_events: int,
        max_await_ms: int,
        opening: Callable[[bytes], None] | None = None,
    ) -> RawChangeStreamCursor:
        """Opens a change stream. Raises pymongo's errors, and FeedmuxError for a read preference that there is not."""
        database = self._client[spec.scope.database or "admin"].with_options(
            codec_options=CodecOptions(document_class=RawBSONDocument),
            read_preference=_read_preference(spec.read_preference) if spec.read_preference else None,
            read_concern=ReadConcern(spec.read_concern) if spec.read_concern else None,
        )
        options: dict[str, Any] = {
            "batchSize": batch_events,
            "maxAwaitTimeMS": max_await_ms,
        }
        if spec.collation:
            options["collation"] = dict(bson.decode(spec.collation, _AS_GIVEN))
        if spec.comment:
            options["comment"] = bson.decode(spec.comment, _AS_GIVEN).get("comment")
        with self._span("aggregate", database.name, spec.scope.collection):
            return await RawChangeStreamCursor.open(database, spec.scope.collection, stages, options, opening)

    async def operations(self, address: Address | None, sessions: list[bytes]) -> list[Operation]:
        wanted = [Binary(each, UUID_SUBTYPE) for each in sessions]
        pipeline = [
            {"$currentOp": {"allUsers": False, "idleConnections": False}},
            {"$match": {"lsid.id": {"$in": wanted}}},
            {"$project": dict.fromkeys(_OF_OPERATIONS, 1)},
        ]
        return await aggregate_on(self._client, address, pipeline)

    async def kill_operation(self, address: Address | None, operation: Any) -> None:
        await run_on(self._client, address, {"killOp": 1, "op": operation})

    async def _oldest(self) -> int:
        entry = await self._client.local["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", 1)])
        if entry is None:
            raise FeedmuxError(
                ErrorReason.SOURCE_UNSUITABLE,
                f"source {self.name!r} is a mongos, which has no oplog to read the earliest time from; start at a time"
                " instead",
            )
        oldest = _as_int(entry["ts"])
        self.saw(oldest)
        return oldest

    async def _look_at_oplog(self) -> OplogState:
        newest = _as_int((await self._client.admin.command("ping"))["operationTime"])
        self.saw(newest)
        size, size_max = await self._oplog_sizes()
        return OplogState(await self._oldest() >> 32, newest >> 32, size, size_max)

    async def _oplog_sizes(self) -> tuple[int, int] | tuple[None, None]:
        """The oplog's size and maximum size. None if the account may read the oplog but not its statistics."""
        if not self._oplog_measurable:
            return None, None
        try:
            cursor = await self._client.local["oplog.rs"].aggregate([{"$collStats": {"storageStats": {}}}])
            storage = (await cursor.next())["storageStats"]
            return int(storage["size"]), int(storage["maxSize"])
        except (OperationFailure, StopAsyncIteration, KeyError) as error:
            # Other failures pass, or concern the oplog itself.
            self._oplog_measurable = getattr(error, "code", None) != _UNAUTHORIZED
            return None, None

    def _span(self, operation: str, database: str, collection: str = "") -> Span:
        """A command's, by the conventions for databases. The getMores of streams have none: there are too many."""
        attributes = {"db.system.name": "mongodb", "db.operation.name": operation, "db.namespace": database}
        if collection:
            attributes["db.collection.name"] = collection
        attributes["feedmux.source"] = self.name
        name = f"{operation} {database}.{collection}" if collection else f"{operation} {database}"
        return self.observer.span(name, attributes, client=True)

    def _pinging(self, asking: Coroutine[Any, Any, "Clock"]) -> asyncio.Task["Clock"]:
        task = asyncio.create_task(asking, name=f"operation-time-{self.name}")
        # Retrieve the exception, because all who waited for it may be gone.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _asked(self, command: Awaitable[T]) -> T:
        """MongoDB's answer, within the time that a request may wait for it: a frozen mongod does not refuse."""
        wait_s = self._config.server_selection_timeout_ms / 1000
        try:
            async with asyncio.timeout(wait_s):
                return await cancellable(command)
        except TimeoutError:
            raise FeedmuxError(
                ErrorReason.SOURCE_UNAVAILABLE,
                f"MongoDB of source {self.name!r} did not answer within {wait_s:g} s",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        except PyMongoError as error:
            raise self.unavailable(error) from error

    async def _own_id(self, hello: Mapping[str, Any]) -> str:
        if hello.get("msg") == "isdbgrid":
            version = await self._client.config["version"].find_one({})
            return str(version["clusterId"]) if version else "sharded"
        try:
            reply = await self._client.admin.command("replSetGetConfig")
            return str(reply["config"]["settings"]["replicaSetId"])
        except OperationFailure:
            return str(hello["setName"])

    async def _ask_time(self) -> "Clock":
        known_before = self.known_time
        try:
            with self._span("hello", "admin"):
                reply = await self._asked(self._client.admin.command("hello"))
        finally:
            self._ping, self._next_ping = self._next_ping, None
        return self._clock_of(reply, known_before)

    async def _ask_time_after(self, running: asyncio.Task["Clock"]) -> "Clock":
        await asyncio.wait([running])
        return await self._ask_time()

    def _clock_of(self, hello: Mapping[str, Any], known_before: int) -> "Clock":
        self.is_mongos = hello.get("msg") == "isdbgrid"
        operation_time = _as_int(hello["operationTime"]) if "operationTime" in hello else 0
        newest = operation_time
        if "$clusterTime" in hello:
            newest = max(newest, _as_int(hello["$clusterTime"]["clusterTime"]))
        if newest < known_before and not self.is_mongos:
            self.known_time = newest  # it was restored from a backup
        self.saw(newest)
        own_s = int(hello["localTime"].replace(tzinfo=UTC).timestamp())
        if self.is_mongos:
            own_s += _SHARDS_DIFFER_S
        return Clock(operation_time, max(newest + 1, (own_s + 1 << 32) - 1))


def _new_client(config: SourceConfig) -> AsyncMongoClient[Mapping[str, Any]]:
    return AsyncMongoClient(
        config.uri,
        appname="feedmux",
        maxPoolSize=None,  # every open stream holds a connection while MongoDB waits for an event
        serverSelectionTimeoutMS=config.server_selection_timeout_ms,
        connectTimeoutMS=config.connect_timeout_ms,
        # A server that said "shutting down" is checked again after this long; 10 s would delay every stream.
        heartbeatFrequencyMS=2_000,
        connect=False,
    )


def _as_int(time: Timestamp) -> int:
    return (time.time << 32) | time.inc


def _read_preference(name: str) -> Any:
    try:
        return make_read_preference(read_pref_mode_from_name(name[:1].lower() + name[1:]), None)
    except (ValueError, KeyError, TypeError):
        raise FeedmuxError(
            ErrorReason.OPTION_REFUSED,
            f"unknown read preference {name!r}: primary, primaryPreferred, secondary, secondaryPreferred or nearest",
            field="feed.read_preference",
        ) from None
