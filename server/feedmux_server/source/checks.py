"""Checks what kind of MongoDB a source is, and whether it can serve change streams: at the start of the server, and for
`feedmux doctor`, which also checks the oplog's window, permissions, images and clocks.

Reads only. Nothing here opens the cursors that serve feeds.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_plus

from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError, ConnectionFailure, OperationFailure
from pymongo.read_preferences import ReadPreference

from feedmux_server.core.check_result import CheckResult, Level, check_clock
from feedmux_server.source.answers import ANSWER, FOR_CLIENTS, info_of
from feedmux_server.source.cursor import listed
from feedmux_server.source.errors import rejects_login, why_rejected

OLDEST_VERSION: Final = (6, 0)
NEWEST_VERSION: Final = (8, 99)
"""The newest version whose change streams are known to us; tests run on 6.0.5 and 6.0.27."""
_FAULTY_VERSIONS: Final = frozenset({(9, 0, 0), (9, 0, 1)})
_AMAZON, _COSMOS, _FERRET = "Amazon DocumentDB", "Azure Cosmos DB", "FerretDB"
_EXTENSION: Final = "Azure DocumentDB, or the documentdb extension of PostgreSQL"
_FEDERATION: Final = "Atlas Data Federation"
_HOSTED: Final = {
    ".docdb.amazonaws.com": _AMAZON,
    ".docdb-elastic.amazonaws.com": _AMAZON,
    ".docdb.amazonaws.com.cn": _AMAZON,
    ".cosmos.azure.com": _COSMOS,
    ".cosmos.azure.cn": _COSMOS,
    ".cosmos.azure.us": _COSMOS,
}
"""Services that speak MongoDB's protocol, by the end of their host names, as MongoDB's drivers recognise them."""
_WHAT_WORKS: Final = {
    _AMAZON: "Its change streams begin by resumeAfter and startAtOperationTime alone, run $match, $project, $redact,"
    " $addFields and $replaceRoot alone, and have no pre-images",
    _COSMOS: "It has no change streams, or those of one shard with limits",
    _FERRET: "It has no change streams",
    _EXTENSION: "It has no change streams",
    _FEDERATION: "It has no change streams; name the cluster itself",
}
_WINDOW_WANTED_H: Final = 24.0
_WINDOW_LEAST_H: Final = 1.0
_ERROR_CHARS: Final = 200
_ERRORS_MAX: Final = 7
NOT_PERMITTED: Final = (13, 8000)
"""Unauthorized, by mongod and by Atlas."""

COMMAND_NOT_FOUND: Final = 59

_Client = AsyncMongoClient[Mapping[str, Any]]


def judge_hello(name: str, hello: Mapping[str, Any], build: Mapping[str, Any]) -> list[CheckResult]:
    """Judge a deployment by its answers to `hello` and `buildInfo`."""
    if other := _not_mongodb(hello, build):
        return [
            CheckResult.failed(
                f"{name}.deployment",
                f"source {name!r} is {other}, not MongoDB",
                f"{_WHAT_WORKS[other]}. feedmux needs those of MongoDB 6.0 and later: any edition, Atlas, or Percona"
                " Server for MongoDB (docs/operations.md, Requirements)",
            )
        ]
    return [_deployment(name, hello), _version(name, build)]


def judge_failure(name: str, error: OperationFailure | ConfigurationError) -> CheckResult:
    """Judge a deployment that answers `hello` or `buildInfo` with an error that is not about the login, or cannot be
    asked: its name in the DNS has no hosts (mongodb+srv), or it lacks the mechanism of the login."""
    failed = partial(CheckResult, f"{name}.deployment", Level.FAILED)
    if isinstance(error, ConfigurationError):
        return failed(
            f"MongoDB of source {name!r} cannot be used: {str(error)[:_ERROR_CHARS]}",
            f"Check sources.{name}.uri (the host of mongodb+srv://, authMechanism) and the DNS",
        )
    if error.code == COMMAND_NOT_FOUND:
        return failed(
            f"source {name!r} is no MongoDB: it lacks the command hello or buildInfo",
            f"Name a mongod or mongos in sources.{name}.uri, and not mongot, for example",
        )
    says = f"source {name!r} answers hello or buildInfo with the error {error.code}"
    return failed(says, "Read MongoDB's log, and try again")


def _not_mongodb(hello: Mapping[str, Any], build: Mapping[str, Any]) -> str:
    """Return the name of a service or server that only speaks MongoDB's protocol; empty for MongoDB."""
    addresses = [*(hello.get("hosts") or ()), hello.get("me", ""), hello.get("primary", "")]
    for address in addresses:
        host = str(address).rpartition(":")[0].lower()
        for suffix, service in _HOSTED.items():
            if host.endswith(suffix):
                return service
    if "ferretdbVersion" in build or "ferretdb" in build:
        return _FERRET
    if "dataLake" in build:
        return _FEDERATION
    internal = hello.get("internal")
    if isinstance(internal, Mapping) and not internal.keys().isdisjoint(("documentdb_versions", "cosmos_versions")):
        return _EXTENSION
    return ""


def _deployment(name: str, hello: Mapping[str, Any]) -> CheckResult:
    check = f"{name}.deployment"
    failed, warning = (partial(CheckResult, check, level) for level in (Level.FAILED, Level.WARNING))
    if "serviceId" in hello:
        return failed(
            f"source {name!r} is behind a load balancer, as serverless instances of Atlas are",
            "The driver must find the members of the replica set: name a cluster that has members",
        )
    if hello.get("msg") == "isdbgrid":
        return warning(
            f"source {name!r} is a sharded cluster (mongos), on which feedmux is untested",
            "Try it before you rely on it; `earliest` and the oplog's headroom are not available there, and a shard"
            " without writes delays events by up to periodicNoopIntervalSecs, 10 s by default (SERVER-126545)",
        )
    if hello.get("isreplicaset"):
        return failed(f"source {name!r} is a mongod of a replica set that is not initiated", "Run rs.initiate() once")
    if "setName" not in hello:
        return failed(
            f"source {name!r} is a standalone mongod, which does not support change streams",
            "Start it with --replSet and run rs.initiate() once (one node is enough), then name the set in the URI:"
            " ?replicaSet=rs0",
        )
    if hello.get("arbiterOnly"):
        return failed(
            f"source {name!r} is an arbiter, which has no data",
            f"Name the members with data in sources.{name}.uri, without directConnection",
        )
    if hello.get("hidden") or hello.get("secondaryDelaySecs"):
        return warning(
            f"source {name!r} is one hidden or delayed member of replica set {hello['setName']}",
            "Its events come late, and end with it. Name the replica set in the URI, without directConnection",
        )
    members = len(hello.get("hosts") or ())
    return CheckResult.ok(check, f"source {name!r} is replica set {hello['setName']} with {members} data nodes")


def _version(name: str, build: Mapping[str, Any]) -> CheckResult:
    check, version = f"{name}.version", str(build.get("version", ""))
    failed, warning = (partial(CheckResult, check, level) for level in (Level.FAILED, Level.WARNING))
    # Of a build such as 8.2.0-rc1 or Percona's 6.0.27-21, the release that it is made from.
    parts = version.partition("-")[0].split(".")[:3]
    numbers = tuple(int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 10)
    if not numbers:
        return warning(
            f"source {name!r} does not say which version of MongoDB it is",
            "Check that it is MongoDB 6.0 or later: any edition, Atlas, or Percona Server for MongoDB",
        )
    if numbers < OLDEST_VERSION:
        return failed(
            f"source {name!r} is MongoDB {version}", "feedmux needs 6.0 or later (6.0, 7.0 and 8.x are supported)"
        )
    if numbers in _FAULTY_VERSIONS:
        return warning(
            f"source {name!r} is MongoDB {version}, where updateLookup may show null for a document that exists"
            " (SERVER-134970)",
            "Upgrade MongoDB to 9.0.2 or later, or use stored images (full_document: whenAvailable)",
        )
    if numbers[:2] > NEWEST_VERSION:
        return warning(
            f"source {name!r} is MongoDB {version}, which is newer than this version of feedmux knows",
            "Check whether there is a newer feedmux, and try this one before you rely on it",
        )
    return CheckResult.ok(check, f"source {name!r} is MongoDB {version}")


def unsuitable_option(uri: str) -> str:
    """Return why an option of a MongoDB URI does not suit change streams; empty if all do.

    The driver would accept it, and then every feed of every tenant would fail.
    """
    for name, value in _options(uri):
        if (why := _UNSUITABLE.get(name.lower())) and value.lower() not in _SUITABLE:
            return f"the option {name} {why}. Leave it out"
    return ""


def tls_files(uri: str) -> list[Path]:
    """Return the files that a MongoDB URI names. pymongo reads them once for each client."""
    return [Path(unquote_plus(value)) for name, value in _options(uri) if value and name.lower() in _TLS_FILES]


def _options(uri: str) -> list[tuple[str, str]]:
    options = [each.partition("=") for each in uri.partition("?")[2].replace(";", "&").split("&")]
    return [(name, value) for name, _, value in options]


def why_unreadable(error: Exception) -> str:
    """Return what pymongo found wrong with a URI, without quoting the URI, which may hold a password."""
    if isinstance(error, OSError) and error.filename:  # of tlsCAFile or tlsCertificateKeyFile
        return f"{error.filename}: {error.strerror}"
    return type(error).__name__


_UNSUITABLE: Final = {
    "readconcernlevel": "does not suit change streams, which read what a majority of the members has",
    "timeoutms": "would end every read that waits for events",
    "loadbalanced": "does not suit change streams of a replica set, whose members the driver must find",
}
_TLS_FILES: Final = frozenset({"tlscafile", "tlscertificatekeyfile", "tlscrlfile"})
_SUITABLE: Final = ("", "majority", "false")


def server_errors(client: AsyncMongoClient[Any]) -> str:
    """Return what the driver says about each server that it could not use, such as a name that cannot be resolved."""
    found = []
    for (host, port), server in sorted(client.topology_description.server_descriptions().items()):
        if server.error is not None:
            # The driver appends its own settings in brackets.
            text = str(server.error).partition(" (configured timeouts")[0]
            found.append(text[:_ERROR_CHARS] if host in text else f"{host}:{port}: {text[:_ERROR_CHARS]}")
        elif server.server_type_name == "RSGhost":
            found.append(f"{host}:{port}: the replica set is not initiated, or removed this member; see rs.initiate()")
    return "; ".join(found[:_ERRORS_MAX])


Step = Callable[[], Awaitable[list[CheckResult]]]


class SourceExamination:
    """Checks one source with a separate client. Raises what pymongo raises for an invalid URI."""

    def __init__(
        self,
        name: str,
        uri: str,
        collections: Sequence[str] = (),
        *,
        timeout_ms: int = 5_000,
        login: Mapping[str, Any] | None = None,
    ) -> None:
        """`collections`: `database.collection` whose images are checked. `login`: `username` and `password`, instead of
        those in the URI."""
        self._name = name
        self._collections = collections
        self._client: _Client = AsyncMongoClient(
            uri,
            **FOR_CLIENTS,
            appname="feedmux-doctor",
            serverSelectionTimeoutMS=timeout_ms,
            connectTimeoutMS=timeout_ms,
            connect=False,
            **(login or {}),
        )
        self._sharded = False

    async def close(self) -> None:
        await self._client.close()

    def steps(self) -> Iterator[tuple[str, Step]]:
        """The checks by name, in their order; the first decides whether the others are worth trying."""
        yield f"{self._name}.reachable", self._reach
        yield f"{self._name}.oplog", self._oplog
        yield f"{self._name}.permissions", self._permissions
        if self._collections:
            yield f"{self._name}.images", self._images
        yield f"{self._name}.clock", self._clock

    async def _reach(self) -> list[CheckResult]:
        check = f"{self._name}.reachable"
        try:
            hello = await self._client.admin.command("hello")
            build = await self._client.admin.command("buildInfo")
        except ConnectionFailure:
            said = server_errors(self._client)
            return [
                CheckResult.failed(
                    check,
                    f"MongoDB of source {self._name!r} cannot be reached{f': {said}' if said else ''}",
                    f"Check sources.{self._name}.uri (hosts, replicaSet, TLS), the network, and that MongoDB runs",
                )
            ]
        except (OperationFailure, ConfigurationError) as error:
            if isinstance(error, ConfigurationError) or not rejects_login(error):
                return [judge_failure(self._name, error)]
            return [
                CheckResult.failed(
                    check,
                    f"MongoDB of source {self._name!r} does not accept feedmux's credentials ({why_rejected(error)})",
                    f"Check user, password, authSource and authMechanism in sources.{self._name}.uri",
                )
            ]
        self._sharded = hello.get("msg") == "isdbgrid"
        return judge_hello(self._name, hello, build)

    async def _oplog(self) -> list[CheckResult]:
        check = f"{self._name}.oplog"
        if self._sharded:
            return [
                CheckResult(check, Level.UNKNOWN, "a mongos has no oplog to check", "Check the oplog of each shard")
            ]
        # As the server: the primary's decides what is lost.
        oplog = self._client.local["oplog.rs"].with_options(read_preference=ReadPreference.PRIMARY)
        try:
            first = await oplog.find_one({}, {"ts": 1}, sort=[("$natural", 1)])
            last = await oplog.find_one({}, {"ts": 1}, sort=[("$natural", -1)])
        except OperationFailure as error:
            return [_missing(check, error, "the oplog cannot be read", 'find on {db: "local", collection: "oplog.rs"}')]
        if first is None or last is None:
            return [CheckResult.failed(check, "the oplog is empty", "Run rs.initiate(), and check rs.status()")]
        window_h = (last["ts"].time - first["ts"].time) / 3600
        says = f"the oplog of source {self._name!r} reaches back {_hours(window_h)}"
        advice = "A reader that is down for longer loses its position: enlarge the oplog (docs/operations.md, Oplog)"
        if window_h < _WINDOW_LEAST_H:
            fresh = "; it may be new rather than small" if window_h < 0.2 else ""
            return [CheckResult.warning(check, says + fresh, advice)]
        return [CheckResult(check, Level.OK if window_h >= _WINDOW_WANTED_H else Level.WARNING, says, advice)]

    async def _permissions(self) -> list[CheckResult]:
        wanted: list[tuple[str, Callable[[], Awaitable[Any]], str]] = [
            (
                "change streams cannot be opened",
                self._open_stream,
                'find and changeStream on {db: "", collection: ""}, and can serve only feeds of single databases',
            ),
            (
                "the replica set's id cannot be read, so positions hold the set's name instead",
                lambda: self._client.admin.command("replSetGetConfig", codec_options=ANSWER),
                f"replSetGetConfig on {{cluster: true}}, or set sources.{self._name}.id",
            ),
            (
                "databases cannot be listed, which `feedmux explain` needs",
                # With authorizedDatabases=True, a missing privilege would hide names instead of causing an error.
                lambda: self._client.admin.command(
                    "listDatabases", nameOnly=True, authorizedDatabases=False, codec_options=ANSWER
                ),
                "listDatabases on {cluster: true}",
            ),
        ]
        if self._sharded:
            del wanted[1]
        found = []
        for says, ask, privilege in wanted:
            try:
                await ask()
            except OperationFailure as error:
                found.append(_missing(f"{self._name}.permissions", error, says, privilege))
        # Only change streams are essential; a lack of the other privileges is a warning.
        if found and found[0].says != wanted[0][0]:
            found = [CheckResult.warning(each.check, each.says, each.advice) for each in found]
        return found or [
            CheckResult.ok(f"{self._name}.permissions", "the account has every privilege that feedmux needs")
        ]

    async def _open_stream(self) -> None:
        async with await self._client.watch(max_await_time_ms=1):
            pass

    async def _images(self) -> list[CheckResult]:
        return [each async for each in self._image_of_each()]

    async def _image_of_each(self) -> AsyncIterator[CheckResult]:
        for namespace in self._collections:
            check = f"{self._name}.images"
            database, _, collection = namespace.partition(".")
            try:
                command = {"listCollections": 1, "filter": {"name": collection}}
                found = [info_of(each) async for part in listed(self._client[database], command) for each in part]
            except OperationFailure as error:
                yield _missing(check, error, f"{database} cannot be listed", f'listCollections on {{db: "{database}"}}')
                continue
            if not found:
                yield CheckResult.warning(check, f"{namespace} does not exist", "Create it, or correct the name")
            elif not found[0].images:
                yield CheckResult.failed(
                    check,
                    f"{namespace} stores no pre- and post-images",
                    f'db.getSiblingDB("{database}").runCommand({{collMod: "{collection}",'
                    " changeStreamPreAndPostImages: {enabled: true}})",
                )
            else:
                yield CheckResult.ok(check, f"{namespace} stores pre- and post-images")

    async def _clock(self) -> list[CheckResult]:
        began_s = time.time()
        local = (await self._client.admin.command("hello"))["localTime"]
        ended_s = time.time()
        # pymongo gives UTC without a zone.
        skew_s = local.replace(tzinfo=UTC).timestamp() - (began_s + ended_s) / 2
        advice = "Run NTP on both: until then reported lag is wrong, and starts by time are off by the same amount"
        return [check_clock(f"{self._name}.clock", "MongoDB", skew_s, (ended_s - began_s) / 2, advice)]


def _missing(check: str, error: OperationFailure, says: str, privilege: str) -> CheckResult:
    if error.code in NOT_PERMITTED:
        return CheckResult.failed(check, says, f"The account lacks {privilege} (docs/operations.md, MongoDB role)")
    return CheckResult.failed(check, f"{says} (code {error.code})", "Check MongoDB's log")


def _hours(hours: float) -> str:
    return f"{hours:.0f} h" if hours >= 1 else f"{hours * 60:.0f} min"
