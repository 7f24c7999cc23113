"""The embedded servers keep their guarantees: real, and ended when this process ends."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import pytest
from redis.asyncio import Redis

from feedmux_embedded import (
    EmbeddedError,
    Mongod,
    Process,
    RedisServer,
    ReplicaSet,
    mongod_binary,
    ports,
    workdir,
)
from feedmux_embedded.ports import free_ports
from tests.default_ports import DEFAULT_PORTS

RedisFactory = Callable[..., Awaitable[RedisServer]]


def gone(pid: int) -> bool:
    """Whether the process has ended, even if its parent has not reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


async def test_stop_leaves_no_process_and_no_file() -> None:
    replica_set, redis = ReplicaSet(oplog_mb=64), RedisServer()
    await replica_set.start()
    await redis.start()
    pids = [replica_set.pid(), redis.process.pid]
    folders = [replica_set.nodes[0].process.output.parent, redis.data_dir]
    await replica_set.stop()
    await redis.stop()
    await redis.stop()
    assert [gone(pid) for pid in pids] == [True, True]
    assert not any(folder.exists() for folder in folders)


async def test_mongod_that_does_not_start_says_why() -> None:
    with pytest.raises(EmbeddedError, match="noSuchParameter"):
        await ReplicaSet(parameters={"noSuchParameter": "1"}).start()


async def test_redis_keeps_writes_across_kill9(redis_factory: RedisFactory) -> None:
    server = await redis_factory(persistence=True)
    async with Redis.from_url(server.url) as client:
        await client.set("place", "here")
    await server.kill9()
    await server.restart()
    async with Redis.from_url(server.url) as client:
        assert await client.get("place") == b"here"


async def test_redis_that_does_not_start_says_why() -> None:
    with pytest.raises(EmbeddedError, match="no-such-directive"):
        await RedisServer(config={"no-such-directive": "1"}).start()


async def test_a_path_with_a_space_is_one_path(redis_factory: RedisFactory, tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    await redis_factory(config={"dir": str(folder)})
    assert list(folder.iterdir())


async def test_what_listens_on_a_port_is_not_taken_for_the_server_itself(redis_factory: RedisFactory) -> None:
    there = await redis_factory()
    for server in (RedisServer(port=there.port), Mongod(port=there.port)):
        with pytest.raises(EmbeddedError, match=f"another program listens on its port {there.port}"):
            await server.start()


_PARENT = """
import asyncio, sys, time
from feedmux_embedded import RedisServer
async def main():
    server = RedisServer()
    await server.start()
    print(server.process.pid, server.data_dir, flush=True)
    time.sleep(600)
asyncio.run(main())
"""


async def test_children_die_with_a_killed_parent_and_the_next_start_sweeps(tmp_path: Path) -> None:
    parent = Process("parent", [sys.executable, "-c", _PARENT], tmp_path / "out")
    parent.start()
    try:
        await until(lambda: parent.log_tail().count(" ") == 1 or not parent.running)
        pid, folder = parent.log_tail().split()
        assert not gone(int(pid))
    finally:
        await parent.kill9()
    await until(lambda: gone(int(pid)))
    assert Path(folder).exists()
    workdir.WorkDir("test").remove()
    assert not Path(folder).exists()


async def test_a_living_folder_is_not_swept() -> None:
    first, second = workdir.WorkDir("test"), workdir.WorkDir("test")
    assert first.path.exists()
    first.remove()
    second.remove()
    assert not second.path.exists()


async def test_child_has_its_own_process_group_and_no_stdin(tmp_path: Path) -> None:
    child = Process("cat", ["/bin/sh", "-c", "cat; exec sleep 60"], tmp_path / "out")
    child.start()
    assert os.getpgid(child.pid) == child.pid
    assert os.getsid(child.pid) == os.getsid(0)
    await child.terminate()
    assert child.returncode == -signal.SIGTERM
    with pytest.raises(EmbeddedError, match="not running"):
        _ = child.pid


async def test_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = Process("stubborn", ["/bin/sh", "-c", "trap '' TERM; echo ready; exec sleep infinity"], tmp_path / "out")
    child.start()
    await until(lambda: "ready" in child.log_tail())
    async with asyncio.timeout(60):
        await child.terminate(patience_s=0.2)
    assert child.returncode == -signal.SIGKILL


def test_child_of_another_thread_is_refused(tmp_path: Path) -> None:
    caught: list[EmbeddedError] = []

    def start() -> None:
        try:
            Process("true", ["/bin/true"], tmp_path / "out").start()
        except EmbeddedError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_missing_binary_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="no/such/mongod"):
        mongod_binary.library_env(Path("/no/such/mongod"), tmp_path)


async def test_another_version_brings_its_libraries(newer_mongo: ReplicaSet) -> None:
    async with newer_mongo.nodes[0].client() as client:
        assert (await client.server_info())["version"] == "6.0.27"


def test_a_port_is_given_once() -> None:
    given = [port for _ in range(200) for port in free_ports(3)]
    assert len(set(given)) == 600


def test_no_port_is_given_that_servers_of_the_user_have_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "keep", lambda block: True)
    given = set(islice(ports._all_in_turn(), ports._highest() - ports._LOWEST))
    assert len(given) > 10_000
    assert not given & DEFAULT_PORTS


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes do not know of each other")
def test_a_process_keeps_its_ports_also_while_nobody_listens_on_them() -> None:
    code = "from feedmux_embedded.ports import free_ports; print(*free_ports(1), flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        blocks = [block for block in range(port - 99, port + 1) if block % 100 == 0]
        assert [ports.keep(block) for block in blocks] == [False]
        other.communicate("\n")
    assert [ports.keep(block) for block in blocks] == [True]


def test_a_forked_process_gets_ports_of_its_own() -> None:
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        theirs = pool.submit(free_ports, 3)
        assert not {*theirs.result()} & {*free_ports(3)}
