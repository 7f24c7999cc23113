"""Start real servers for the tests that request them; a test that requests none starts none.

`mongo` and `redis_server` are shared by the whole run: use your own database (`database`), and do not stop these
servers. To inject faults, start your own servers with `replica_set_factory` and `redis_factory`; those servers end with
the test. All servers die with pytest, whatever ends pytest.
"""

import gc
import importlib
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import pytest_asyncio
from pymongo import MongoClient
from pymongo.database import Database
from xdist.remote import Producer

from feedmux_embedded import Mongod, RedisServer, ReplicaSet
from tests import default_ports, named_servers, scheduling

# A busy machine distorts timings, so Hypothesis deadlines prove nothing about the code.
hypothesis.settings.register_profile("feedmux", deadline=None, print_blob=True)
hypothesis.settings.load_profile("feedmux")

# Collecting tests makes hundreds of thousands of objects, which stay. Walking them costs a third of the time.
gc.disable()

default_ports.refuse()

# A run that was started in the background ignores SIGINT, and so would the processes that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# So does one under nohup SIGHUP. Processes that it starts have no handler, and so the default.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

CACHE_GB = 1
"""With 0.25 GB, MongoDB rolled back an update that wrote about 30 MB because its cache was short, and tried it again,
which took minutes on a busy machine."""
SOON = {"periodicNoopIntervalSecs": "1"}
"""What waits for a later cluster time need not wait for 10 s, until MongoDB writes its next no-op."""

ReplicaSetFactory = Callable[..., Awaitable[ReplicaSet]]
RedisFactory = Callable[..., Awaitable[RedisServer]]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Python looks for garbage from here on, and no more at what was made until now."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: scheduling.in_order(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Fail a test that leaves a default port in use."""
    yield
    ports = default_ports.used()
    assert not ports, f"a test must not use the default ports, on which a server of the user may listen: {ports}"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and (wrong := named_servers.complaint()):
        raise pytest.UsageError(wrong)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Each of several processes imports a share of the tests first: otherwise all of them compile each file again,
    at the same time, where there is no bytecode yet."""
    number, of = (os.environ.get(f"PYTEST_XDIST_WORKER{each}", "") for each in ("", "_COUNT"))
    if number not in ("", scheduling.FOR_SPARK):
        os.nice(5)
    if number and len(session.config.args) == 1 and Path(session.config.args[0]).is_dir():
        for path in sorted(Path(session.config.args[0]).rglob("test_*.py"))[int(number[2:]) :: int(of)]:
            # What fails here fails again where pytest reports it.
            with suppress(Exception, pytest.skip.Exception):
                importlib.import_module(
                    ".".join(path.resolve().relative_to(session.config.rootpath).with_suffix("").parts)
                )


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> scheduling.Scheduling:
    return scheduling.Scheduling(config, log)


RUNNING = os.environ.get("FEEDMUX_TEST_MONGODB_URI", "")
"""A MongoDB that runs already (`./run test --mongodb-uri`)."""


if RUNNING:

    async def _skip(_: object) -> None:
        pytest.skip("needs a MongoDB of its own; --mongodb-uri names one that runs")

    # A test with the program that pip installs would show nothing about the deployment that is named.
    Mongod.start = _skip  # type: ignore[assignment, method-assign]
    ReplicaSet.start = _skip  # type: ignore[assignment, method-assign]


class RunningDeployment(ReplicaSet):
    """Stands for a MongoDB that the tests may use, but not stop: a test that wants more than its URI is skipped."""

    def __init__(self) -> None:
        pass

    @property
    def uri(self) -> str:
        return RUNNING

    def __getattribute__(self, name: str) -> Any:
        if name != "uri" and not name.startswith("__"):
            pytest.skip(f"needs a MongoDB of its own ({name}); --mongodb-uri names one that runs")
        return super().__getattribute__(name)


@pytest_asyncio.fixture(scope="session")
async def mongo() -> AsyncIterator[ReplicaSet]:
    """A one-node replica set with an oplog of 1 GB."""
    if RUNNING:
        yield RunningDeployment()
        return
    async with ReplicaSet(oplog_mb=1024, cache_gb=CACHE_GB, parameters=SOON) as replica_set:
        yield replica_set


@pytest_asyncio.fixture(scope="session")
async def redis_server() -> AsyncIterator[RedisServer]:
    """An empty Redis; use only your own keys (a tenant or subscription named after the test)."""
    async with RedisServer(persistence=False) as server:
        yield server


@pytest.fixture(scope="session")
def newer_mongod() -> Path:
    """The binary of MongoDB 6.0.27, which splits large events (`./run test` installs it). Skips the test if the binary
    is missing. Where the run names its MongoDB, that one."""
    if named := os.environ.get("FEEDMUX_MONGOD"):
        return Path(named)
    binary = Path(sys.prefix, "mongod-6.0.27", "fiftyone", "db", "bin", "mongod")
    if not binary.exists():
        pytest.skip("no MongoDB 6.0.27: ./run test installs it")
    return binary


@pytest_asyncio.fixture(scope="session")
async def newer_mongo(request: pytest.FixtureRequest) -> AsyncIterator[ReplicaSet]:
    """Like `mongo`, but MongoDB 6.0.27. Where the run names a MongoDB that runs, that one, if it is new enough."""
    if RUNNING:
        with MongoClient[dict[str, Any]](RUNNING) as client:
            info = client.server_info()
        if info["versionArray"] < [6, 0, 9]:
            pytest.skip(f"needs MongoDB 6.0.9, which splits large events; --mongodb-uri names {info['version']}")
        yield RunningDeployment()
        return
    binary = request.getfixturevalue("newer_mongod")
    async with ReplicaSet(oplog_mb=1024, cache_gb=CACHE_GB, binary=binary, parameters=SOON) as replica_set:
        yield replica_set


@pytest.fixture(scope="session")
def mongo_client(mongo: ReplicaSet) -> Iterator[MongoClient[dict[str, Any]]]:
    """A synchronous pymongo client of `mongo`."""
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        yield client


@pytest.fixture
def database(mongo_client: MongoClient[dict[str, Any]]) -> Iterator[Database[dict[str, Any]]]:
    """A database with a fresh name, dropped after the test."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield mongo_client[name]
    mongo_client.drop_database(name)


@pytest_asyncio.fixture
async def replica_set_factory() -> AsyncIterator[ReplicaSetFactory]:
    """Start a replica set: `await replica_set_factory(nodes=3, oplog_mb=…)` takes the arguments of ReplicaSet."""
    async with AsyncExitStack() as stack:

        async def make(*args: Any, **kwargs: Any) -> ReplicaSet:
            return await stack.enter_async_context(ReplicaSet(*args, **kwargs))

        yield make


@pytest_asyncio.fixture
async def redis_factory() -> AsyncIterator[RedisFactory]:
    """Start a Redis: `await redis_factory(persistence=True, config={…})` takes the arguments of RedisServer."""
    async with AsyncExitStack() as stack:

        async def make(*args: Any, **kwargs: Any) -> RedisServer:
            return await stack.enter_async_context(RedisServer(*args, **kwargs))

        yield make
