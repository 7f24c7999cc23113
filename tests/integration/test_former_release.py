"""Servers, clients and stored subscriptions of an earlier commit work with this tree's (docs/compatibility.md)."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import feedmux
from feedmux_embedded import RedisServer, ReplicaSet
from tests.conformance.clients import runners
from tests.documents import Documents
from tests.integration.servers import REPOSITORY, ServerProcess, settings, until

FORMER = "b7ef2f443e32cf8d22c32caa047333386cda265a"
"""There is no release yet. With the first one, this becomes the tag of the newest."""
_CODE = ("clients/python", "server")
_TREE = (*_CODE, "clients/go", "clients/java", "clients/node", "proto")
LANGUAGES = [language for name, language in runners.LANGUAGES.items() if name != "python"]


@pytest.fixture(scope="module")
def former() -> Path:
    """A folder with the former code, which is kept: the builds of its clients take a minute each."""
    folder = Path(sys.prefix) / f"former-{FORMER[:9]}"
    if not folder.exists():
        archive = subprocess.run(["git", "archive", FORMER, *_TREE], cwd=REPOSITORY, capture_output=True, check=False)
        if archive.returncode:
            pytest.skip(f"this checkout does not have the commit {FORMER[:9]}: fetch the whole history")
        with TemporaryDirectory(dir=folder.parent) as begun:
            subprocess.run(["tar", "-x"], cwd=begun, input=archive.stdout, check=True)
            # Another run may have made it meanwhile.
            with suppress(OSError):
                Path(begun).rename(folder)
                Path(begun).mkdir()
    return folder


def _environment(former: Path) -> dict[str, str]:
    return {"PYTHONPATH": ":".join(str(former / each) for each in _CODE)}


class Deployment:
    """A former and a present server with the same MongoDB, Redis and ports, of which one runs."""

    def __init__(self, mongo: ReplicaSet, redis: RedisServer, folder: Path, former: Path) -> None:
        folders = [folder / "former", folder / "present"]
        for each in folders:
            each.mkdir()
        configuration = settings(mongo.uri, redis.url)
        self.former = ServerProcess(configuration, folders[0], _environment(former))
        self.present = ServerProcess(configuration, folders[1], ports=self.former.ports)
        self.port = self.present.ports[0]

    async def replace(self, running: ServerProcess, by: ServerProcess) -> None:
        await running.process.terminate()
        await by.start()


@asynccontextmanager
async def deployment(mongo: ReplicaSet, redis: RedisServer, folder: Path, former: Path) -> AsyncIterator[Deployment]:
    both = Deployment(mongo, redis, folder, former)
    try:
        yield both
    finally:
        await both.former.kill9()
        await both.present.kill9()


async def read_with_former_client(former: Path, port: int, name: str, count: int) -> list[int]:
    command = [sys.executable, "-m", "tests.integration.read_numbers", str(port), name, str(count)]
    environment = os.environ | _environment(former)
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    where, *numbers = done.stdout.split()
    assert Path(where).is_relative_to(former), "this shows nothing about the former client"
    return [int(number) for number in numbers]


async def read_with_runner(language: runners.Language, root: Path, port: int, name: str) -> list[int]:
    """Ten numbers, with the client that `root` has."""
    await runners.build(language, root)
    async with runners.started(language, root) as runner:
        await runner.ask("new", 60, target=f"127.0.0.1:{port}", source="main", timeout_s=60)
        await runner.ask("open", 90, session="s", subscription=name)
        taken = await runner.ask("take", 90, session="s", count=10, timeout_s=60, report=["document"])
        await runner.ask("ack", 60, session="s")
        await runner.ask("close", 60, session="s")
    documents = [item["event"]["document"] for item in taken["items"] if "event" in item]
    return [int(document["fullDocument"]["n"]["$numberInt"]) for document in documents]


async def test_a_session_goes_on_at_a_later_server_and_back_at_a_former_one(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, name: str, tmp_path: Path, former: Path
) -> None:
    seen: dict[str, list[int]] = {"all": [], "even": []}
    written = 0

    async def read(kind: str) -> None:
        async with client.subscription(f"{name}-{kind}").open(backoff_first_s=0.1, backoff_most_s=0.5) as session:
            async for event in session:
                seen[kind].append(event.document["fullDocument"]["n"])
                if len(seen[kind]) % 7 == 0:
                    session.ack(event)

    async def write() -> None:
        nonlocal written
        database.c.insert_many([{"n": written + i} for i in range(50)])
        written += 50
        await until(lambda: seen["all"][-1:] == [written - 1] and seen["even"][-1:] == [written - 2])

    async with deployment(mongo, redis_server, tmp_path, former) as servers:
        await servers.former.start()
        loaded = Path(f"/proc/{servers.former.process.pid}/environ").read_bytes()
        assert str(former).encode() in loaded
        async with feedmux.AsyncClient(f"127.0.0.1:{servers.port}", source="main") as client:
            await client.create_subscription(f"{name}-all", database=database.name, collection="c")
            even = [{"$match": {"fullDocument.n": {"$mod": [2, 0]}}}]
            await client.create_subscription(f"{name}-even", database=database.name, collection="c", pipeline=even)
            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(read(kind)) for kind in seen]
                await write()
                await servers.replace(servers.former, by=servers.present)
                await write()
                await servers.replace(servers.present, by=servers.former)
                await write()
                await servers.replace(servers.former, by=servers.present)
                await write()
                for reader in readers:
                    reader.cancel()
    assert seen["all"] == list(range(written))
    assert seen["even"] == list(range(0, written, 2))


async def test_a_former_client_and_a_present_one_take_turns_at_a_subscription(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, name: str, tmp_path: Path, former: Path
) -> None:
    async with deployment(mongo, redis_server, tmp_path, former) as servers:
        await servers.present.start()
        async with feedmux.AsyncClient(f"127.0.0.1:{servers.port}", source="main") as client:
            await client.create_subscription(name, database=database.name, collection="c")
            database.c.insert_many([{"n": n} for n in range(30)])
            assert await read_with_former_client(former, servers.port, name, 10) == list(range(10))
            numbers = []
            async with client.subscription(name).open() as session:
                async for event in session:
                    numbers.append(event.document["fullDocument"]["n"])
                    session.ack(event)
                    if len(numbers) == 10:
                        break
            assert numbers == list(range(10, 20))
            assert await read_with_former_client(former, servers.port, name, 10) == list(range(20, 30))


@pytest.mark.full
@pytest.mark.timeout(3 * runners.BUILD_S)
@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
async def test_former_clients_read_from_this_server_and_present_clients_from_a_former_one(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    database: Documents,
    name: str,
    tmp_path: Path,
    former: Path,
    language: runners.Language,
) -> None:
    if language.missing:
        pytest.skip(f"no {' and no '.join(language.missing)} on this machine")
    async with deployment(mongo, redis_server, tmp_path, former) as servers:
        await servers.present.start()
        async with feedmux.AsyncClient(f"127.0.0.1:{servers.port}", source="main") as client:
            await client.create_subscription(name, database=database.name, collection="c")
        database.c.insert_many([{"n": n} for n in range(30)])
        assert await read_with_runner(language, former, servers.port, name) == list(range(10))
        await servers.replace(servers.present, by=servers.former)
        assert await read_with_runner(language, REPOSITORY, servers.port, name) == list(range(10, 20))
        assert await read_with_runner(language, former, servers.port, name) == list(range(20, 30))


async def test_what_a_former_server_does_not_know_is_an_error_and_nothing_is_stored(
    mongo: ReplicaSet, redis_server: RedisServer, database: Documents, name: str, tmp_path: Path, former: Path
) -> None:
    async with deployment(mongo, redis_server, tmp_path, former) as servers:
        await servers.former.start()
        async with feedmux.AsyncClient(f"127.0.0.1:{servers.port}", source="main") as client:
            with pytest.raises(feedmux.SnapshotUnsupported):
                await client.create_subscription(name, start="snapshot", database=database.name, collection="c")
            with pytest.raises(feedmux.SnapshotUnsupported):
                async with client.feed(database=database.name, collection="c").open(start="snapshot") as session:
                    await anext(aiter(session))
            with pytest.raises(feedmux.SubscriptionNotFound):
                await client.get_subscription(name)
