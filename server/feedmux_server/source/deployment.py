"""One MongoDB deployment that feeds come from: its client, its identity, its cursors.

Owned by `app` for the life of the process; readers open cursors on it. Nothing above `source` sees pymongo.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, ValuesView
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import bson
from bson.binary import UUID_SUBTYPE, Binary
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError, ConnectionFailure, OperationFailure, PyMongoError
from pymongo.monitoring import ServerClosedEvent, ServerDescriptionChangedEvent, ServerListener, ServerOpeningEvent
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference, make_read_preference, read_pref_mode_from_name
from pymongo.uri_parser import parse_uri

from feedmux_server.clock import monotonic_s
from feedmux_server.core.check_result import Level, failures
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec
from feedmux_server.source.answers import ANSWER, FOR_CLIENTS, RAW_ANSWER, CollectionInfo, info_of, name_of
from feedmux_server.source.catchup_limiter import CatchupLimiter
from feedmux_server.source.checks import COMMAND_NOT_FOUND, NOT_PERMITTED, judge_failure, judge_hello, server_errors
from feedmux_server.source.commands import RETRY_AFTER_S, Client, SourceCommands
from feedmux_server.source.cursor import RawChangeStreamCursor, aggregate_on, database_names, listed, run_on
from feedmux_server.source.errors import rejects_login, why_rejected
from feedmux_server.source.letters import Letters, LettersPlace
from feedmux_server.source.logins import Logins
from feedmux_server.source.oplog import Oplog
from feedmux_server.source.read_watch import Address, Operation, ReadWatch
from feedmux_server.source.source_clock import SourceClock
from feedmux_server.source.timeline import SourceTimeline
from feedmux_server.telemetry.observer import NOBODY, Observer

log = logging.getLogger(__name__)

_LOGIN_LINE_EVERY_S = 60.0
_OF_OPERATIONS = (
    "opid", "active", "numYields", "waitingForLock", "lsid.id", "shard", "cursor.cursorId", "command.aggregate",
)  # fmt: skip
"""Fields requested from $currentOp. None holds client input: a pipeline may hold values that the driver rejects."""
_HIDES_ID = (*NOT_PERMITTED, COMMAND_NOT_FOUND, 115)
"""Answers for good to a question for the id of a replica set; 115 is CommandNotSupported."""
_COLLECTION = {"type": "collection"}
LISTED_AT_ONCE = 500
"""So many names take 1 ms of the event loop."""
_NAMES_AT_ONCE = 100
"""To ask grants about so many names takes a millisecond of the event loop."""
_INFOS_AT_ONCE = 50
"""So many are found in a millisecond of the event loop."""


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """A deployment as the operator named it."""

    name: str
    uri: str
    username: str = ""
    """Instead of the user in the URI."""
    password: str = field(default="", repr=False)
    """Instead of the password in the URI."""
    source_id: str = ""
    """The id in positions. Empty: the replica set's own id, or its name if the account may not read the id."""
    server_selection_timeout_ms: int = 10_000
    connect_timeout_ms: int = 5_000
    history_reads: int = 2
    """Reads of history that are under way at a time."""


class Source:
    """A connected MongoDB deployment."""

    def __init__(
        self,
        config: SourceConfig,
        observer: Observer = NOBODY,
        client: Client | None = None,
    ) -> None:
        """`client` is by default a new one for `uri`, which connects at the first command."""
        self.name = config.name
        self.observer = observer
        self._config = config
        wait_s = config.server_selection_timeout_ms / 1000
        lost = _Lost()
        new_client = partial(_new_client, config, lost)
        self._commands = SourceCommands(
            config.name,
            client or new_client(config.username, config.password),
            wait_s,
            observer,
            (lambda: self.logins.new_client()) if client is None else None,
        )
        self.clock = SourceClock(self._commands)
        self.oplog = Oplog(self._commands, self.clock)
        self.logins = Logins(self._commands, new_client, config.username, config.password)
        self.timeline = SourceTimeline(self._commands, self.oplog, observer)
        self.timeline.source_id = lambda: self.source_id
        lost.tell = self.timeline.doubt
        self._source_id = config.source_id
        self._next_login_line_s = 0.0
        self.connected = False
        """Whether it has once been found fit for change streams."""
        self.history_reads = CatchupLimiter(config.history_reads)
        self.read_watch = ReadWatch(self)
        self.cursors = 0
        """Change streams that readers hold open now."""

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
            known_time = self.clock.known_time
            hello = await self._client.admin.command("hello")
            found = judge_hello(self.name, hello, await self._client.admin.command("buildInfo"))
            if refused := failures(found):
                raise FeedmuxError(ErrorReason.SOURCE_UNSUITABLE, "\n".join(str(each) for each in refused))
            self.clock.read(hello, known_time)  # what is not MongoDB may answer without its times
            if not self._source_id:
                self._source_id = await self._own_id(hello)
        except ConnectionFailure as error:
            said = server_errors(self._client)
            raise FeedmuxError(
                ErrorReason.SOURCE_UNAVAILABLE,
                f"MongoDB of source {self.name!r} at {self._hosts()} was not reached within"
                f" {self._config.server_selection_timeout_ms / 1000:g} s{f' ({said})' if said else ''}. Check"
                f" sources.{self.name}.uri (hosts, replicaSet, TLS) and that MongoDB runs, or allow it more time with"
                f" sources.{self.name}.server_selection_timeout_ms",
            ) from error
        except OperationFailure as error:
            if error.code == COMMAND_NOT_FOUND:
                raise FeedmuxError(ErrorReason.SOURCE_UNSUITABLE, str(judge_failure(self.name, error))) from error
            if not rejects_login(error):
                judged = self._commands.unavailable(error)
                reason, message = judged.reason, f"source {self.name!r}: {judged.message}"
                if reason is ErrorReason.OPTION_REFUSED:  # these commands have no options of a caller
                    reason = ErrorReason.SOURCE_UNAVAILABLE
                raise FeedmuxError(reason, message, judged.metadata, retry_after_s=RETRY_AFTER_S) from error
            self.login_rejected(error)
            raise FeedmuxError(
                ErrorReason.SOURCE_UNAUTHORIZED,
                f"MongoDB of source {self.name!r} rejects feedmux's login ({why_rejected(error)}). Check user, password"
                f" (percent-encoded), authSource and authMechanism in sources.{self.name}.uri",
            ) from error
        except ConfigurationError as error:
            reason = self._commands.unavailable(error).reason
            raise FeedmuxError(reason, str(judge_failure(self.name, error)), retry_after_s=RETRY_AFTER_S) from error
        except (PyMongoError, BSONError) as error:
            raise self._commands.unavailable(error) from error
        self.connected = True
        return tuple(str(each) for each in found if each.level is Level.WARNING)

    def login_rejected(self, error: PyMongoError) -> None:
        """Tell the operator, since streams only wait until MongoDB accepts the login again. Each attempt of each stream
        calls this: one line a minute is enough."""
        now_s = monotonic_s()
        if now_s >= self._next_login_line_s:
            self._next_login_line_s = now_s + _LOGIN_LINE_EVERY_S
            log.error(
                "feedmux cannot log in to MongoDB of source %r (%s). Its feeds wait, and continue when it can. Check"
                " sources.%s.uri, or its password_file, and the account in MongoDB; after a change of the URI, restart"
                " feedmux",
                self.name,
                why_rejected(error),
                self.name,
            )

    def _hosts(self) -> str:
        """Return the hosts of the URI, without its credentials, for messages to the operator."""
        if "+srv" in self._config.uri.partition(":")[0]:
            return self._config.uri.rpartition("@")[2].partition("/")[0]
        return ",".join(f"{host}:{port}" for host, port in parse_uri(self._config.uri)["nodelist"])

    async def close(self) -> None:
        await self.clock.close()
        await self.logins.close()
        await self._client.close()

    @property
    def _client(self) -> Client:
        return self._commands.client

    async def databases(self) -> list[str]:
        """Names of all databases. Raises FeedmuxError where they may not be listed."""
        with self._commands.span("listDatabases", "admin"):
            return await self._commands.answer(database_names(self._client))

    async def collections(self, database: str, collection: str = "", *, most: int) -> dict[str, bool]:
        """At most `most` collections of a database, or only the one of this name, and whether pre- and post-images are
        stored. Raises as `databases` does."""
        wanted = _COLLECTION | ({"name": collection} if collection else {})
        with self._commands.span("listCollections", database, collection):
            found = await self._commands.answer(self._infos(database, most, filter=wanted))
        return {name: info.images for name, info in found.items()}

    async def names(self, database: str, collection: str = "", *, most: int) -> list[str]:
        """The names of at most `most` collections and views of a database, or only this one if it exists. Raises as
        `databases` does."""
        wanted = {"name": collection} if collection else {}
        with self._commands.span("listCollections", database, collection):
            return await self._commands.answer(
                self._names(database, most, filter=wanted, nameOnly=True, authorizedCollections=True)
            )

    async def _names(self, database: str, most: int, **options: Any) -> list[str]:
        return [name_of(each) async for part in self._parts(database, most, **options) for each in part]

    async def _infos(self, database: str, most: int | None, **options: Any) -> dict[str, CollectionInfo]:
        found = dict[str, CollectionInfo]()
        async for part in self._parts(database, most, **options):
            for count, each in enumerate(part, 1):
                found[name_of(each)] = info_of(each)
                if count % _INFOS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        return found

    async def _parts(self, database: str, most: int | None, **options: Any) -> AsyncIterator[list[bytes]]:
        count = 0
        async with aclosing(self._listed(database, {"listCollections": 1, **options})) as parts:
            async for part in parts:
                yield part if most is None else part[: most - count]
                count += len(part)
                if most is not None and count >= most:
                    return
                await asyncio.sleep(0)  # deliveries do not wait for thousands of collections

    def _listed(self, database: str, command: Mapping[str, Any]) -> AsyncGenerator[list[bytes], None]:
        return listed(self._client[database], command, LISTED_AT_ONCE)

    async def open_cursor(
        self,
        spec: FeedSpec,
        stages: list[Any],
        batch_events: int,
        max_await_ms: int,
        opening: Callable[[bytes], None] | None = None,
    ) -> RawChangeStreamCursor:
        """Opens a change stream. Raises pymongo's errors, and FeedmuxError for a read preference that there is not."""
        cursors = self.logins.cursors
        database = self._client[spec.scope.database or "admin"].with_options(
            codec_options=RAW_ANSWER,
            read_preference=_read_preference(spec.read_preference) if spec.read_preference else None,
            read_concern=ReadConcern(spec.read_concern) if spec.read_concern else None,
        )
        options: dict[str, Any] = {
            "batchSize": batch_events,
            "maxAwaitTimeMS": max_await_ms,
        }
        if spec.collation:
            options["collation"] = dict(bson.decode(spec.collation, RAW_ANSWER))
        if spec.comment:
            options["comment"] = bson.decode(spec.comment, RAW_ANSWER).get("comment")
        with self._commands.span("aggregate", database.name, spec.scope.collection):
            cursor = await RawChangeStreamCursor.open(database, spec.scope.collection, stages, options, opening)
        cursors.add(cursor)
        await self.logins.close_unused()
        return cursor

    async def collection(self, database: str, name: str) -> CollectionInfo | None:
        """What a collection or view is now; None if there is none. Raises as `databases` does."""
        with self._commands.span("listCollections", database, name):
            found = await self._commands.answer(self._infos(database, None, filter={"name": name}))
        return found.get(name)

    async def collection_names(
        self, database: str, first: str, wanted: Callable[[str], bool], most: int
    ) -> tuple[list[str], int]:
        """The least `most` wanted names, in order, of the collections that a database has now from the name `first` on,
        without views and time series; and how many were listed. Raises as `databases` does."""
        with self._commands.span("listCollections", database):
            return await self._commands.answer(self._least_names(database, first, wanted, most))

    async def _least_names(
        self, database: str, first: str, wanted: Callable[[str], bool], most: int
    ) -> tuple[list[str], int]:
        least, count = list[str](), 0
        from_first = _COLLECTION | {"name": {"$gte": first}}
        async for part in self._parts(database, None, filter=from_first, nameOnly=True):
            count += len(part)
            for at in range(0, len(part), _NAMES_AT_ONCE):
                names = filter(wanted, map(name_of, part[at : at + _NAMES_AT_ONCE]))
                least = sorted([*least, *names])[:most]
                await asyncio.sleep(0)
        return least, count

    async def special_collections(self, database: str) -> dict[str, CollectionInfo]:
        """Those of `collection_names` that are capped or clustered, or have a collation. Raises as `databases` does."""
        special = [{f"options.{name}": {"$exists": True}} for name in ("capped", "collation", "clusteredIndex")]
        with self._commands.span("listCollections", database):
            return await self._commands.answer(self._infos(database, None, filter=_COLLECTION | {"$or": special}))

    async def estimated_count(self, database: str, name: str) -> int:
        """The number of documents by MongoDB's metadata, which costs no scan and may be wrong after a crash. Raises as
        `databases` does."""
        with self._commands.span("count", database, name):
            return await self._commands.answer(self._client[database][name].estimated_document_count())

    async def scans(self, database: str, name: str, stages: list[Any]) -> bool:
        """Whether MongoDB would read a whole collection for these stages. Raises as `databases` does."""
        command = {"explain": {"aggregate": name, "pipeline": stages, "cursor": {}}, "verbosity": "queryPlanner"}
        with self._commands.span("explain", database, name):
            plan = await self._commands.answer(self._client[database].command(command, codec_options=ANSWER))
        return _has_stage(plan, "COLLSCAN")

    async def open_documents(
        self,
        spec: FeedSpec,
        stages: list[Any],
        batch_documents: int,
        cluster_time: int,
        opening: Callable[[bytes], None] | None = None,
    ) -> RawChangeStreamCursor:
        """Opens a read of a collection as of a cluster time. Raises as `open_cursor`.

        Values compare by their bytes, as grants mean them, also where a collection with a collation has just taken the
        place of the one that was checked.
        """
        database = self._client[spec.scope.database].with_options(
            codec_options=RAW_ANSWER,
            read_preference=_read_preference(spec.read_preference) if spec.read_preference else None,
        )
        options: dict[str, Any] = {
            "batchSize": batch_documents,
            "readConcern": _as_of(cluster_time),
            "collation": {"locale": "simple"},
        }
        if spec.comment:
            options["comment"] = bson.decode(spec.comment, RAW_ANSWER).get("comment")
        cursors = self.logins.cursors
        with self._commands.span("aggregate", database.name, spec.scope.collection):
            cursor = await RawChangeStreamCursor.open(database, spec.scope.collection, stages, options, opening)
        cursors.add(cursor)
        return cursor

    async def find_id(self, spec: FeedSpec, find: dict[str, Any], cluster_time: int) -> bytes:
        """The BSON document `{_id: …}` that a `find` returns as of a cluster time; empty for none. Raises as
        `open_cursor`."""
        options = {"readConcern": _as_of(cluster_time), "collation": {"locale": "simple"}}
        preference = _read_preference(spec.read_preference) if spec.read_preference else None
        with self._commands.span("find", spec.scope.database, spec.scope.collection):
            reply = await self._client[spec.scope.database].command(
                find | options, read_preference=preference, codec_options=RAW_ANSWER
            )
        found: list[RawBSONDocument] = reply["cursor"]["firstBatch"]
        return bytes(found[0].raw) if found else b""

    def letters(self, place: LettersPlace) -> Letters:
        """The dead letters in a collection of this deployment."""
        return Letters(self._commands, place)

    def nodes(self) -> frozenset[Address]:
        """The servers of the deployment that are known by now."""
        return self._client.nodes

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

    async def _own_id(self, hello: Mapping[str, Any]) -> str:
        if hello.get("msg") == "isdbgrid":
            # A secondary of the config servers may not have it yet.
            found = self._client.config["version"].with_options(read_preference=ReadPreference.PRIMARY)
            version = await found.find_one({})
            return str(version["clusterId"]) if version else "sharded"
        try:
            reply = await self._client.admin.command("replSetGetConfig", codec_options=ANSWER)
            return str(reply["config"]["settings"]["replicaSetId"])
        except OperationFailure as error:
            if error.code not in _HIDES_ID or rejects_login(error):
                raise  # it passes, and another id for the life of this process would not
            return str(hello["setName"])


def _as_of(cluster_time: int) -> dict[str, Any]:
    time_ = Timestamp(cluster_time >> 32, cluster_time & 0xFFFF_FFFF)
    return {"level": "snapshot", "atClusterTime": time_}


def _has_stage(plan: Any, name: str) -> bool:
    if isinstance(plan, Mapping):
        if plan.get("stage") == name:
            return True
        plan = plan.values()
    return isinstance(plan, list | ValuesView) and any(_has_stage(each, name) for each in plan)


class _Lost(ServerListener):
    """Tells when the driver has lost a server, also while no stream reads it."""

    def __init__(self) -> None:
        self.tell: Callable[[], None] = lambda: None

    def opened(self, event: ServerOpeningEvent) -> None:
        """Do nothing: the server is not known yet."""

    def description_changed(self, event: ServerDescriptionChangedEvent) -> None:
        if not event.new_description.is_server_type_known and event.previous_description.is_server_type_known:
            self.tell()

    def closed(self, event: ServerClosedEvent) -> None:
        """Do nothing: the set has another member list, or the client is closed."""


def _new_client(config: SourceConfig, lost: ServerListener, username: str, password: str) -> Client:
    login: dict[str, Any] = {"username": username, "password": password}
    return AsyncMongoClient(
        config.uri,
        **{name: value for name, value in login.items() if value},
        **FOR_CLIENTS,
        appname="feedmux",
        event_listeners=[lost],
        maxPoolSize=None,  # every open stream holds a connection while MongoDB waits for an event
        serverSelectionTimeoutMS=config.server_selection_timeout_ms,
        connectTimeoutMS=config.connect_timeout_ms,
        # A server that said "shutting down" is checked again after this long; 10 s would delay every stream.
        heartbeatFrequencyMS=2_000,
        connect=False,
    )


def _read_preference(name: str) -> Any:
    try:
        return make_read_preference(read_pref_mode_from_name(name[:1].lower() + name[1:]), None)
    except (ValueError, KeyError, TypeError):
        raise FeedmuxError(
            ErrorReason.OPTION_REFUSED,
            f"unknown read preference {name!r}: primary, primaryPreferred, secondary, secondaryPreferred or nearest",
            field="feed.read_preference",
        ) from None
