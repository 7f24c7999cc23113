"""Deployments that the server rejects, and the next step it reports; reflection, health, `buf curl`."""

import asyncio
import gc
import json
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from feedmux_embedded import Mongod, RedisServer, ReplicaSet
from feedmux_server.app import CannotStart, running
from feedmux_server.config.server import Config
from feedmux_server.rpc.health import Health
from feedmux_server.rpc.server import HealthServer, PortInUse
from tests.documents import Documents
from tests.integration.servers import Here, settings
from tests.integration.wire import Api


async def cannot_start(configuration: dict[str, Any], *, insecure_no_auth: bool = True) -> str:
    """Why not; and the process is left as it was."""
    tasks = asyncio.all_tasks()
    with pytest.raises(CannotStart) as caught:
        async with running(Config(**configuration), insecure_no_auth=insecure_no_auth):
            pass
    assert not [task for task in asyncio.all_tasks() - tasks if task.get_name() in ("committer", "manager")]
    with warnings.catch_warnings():
        # The driver may leave a socket open that was still connecting when its client was closed.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    message = str(caught.value)
    assert "Traceback" not in message
    return message


async def test_a_replica_set_that_is_not_initiated(redis_server: RedisServer) -> None:
    """Reached by its set, the driver finds no member that can serve."""
    async with Mongod(replica_set="rs0") as mongod:
        for options in ("replicaSet=rs0", "directConnection=true"):
            configuration = settings(f"mongodb://{mongod.address}/?{options}", redis_server.url)
            for source in configuration["sources"].values():
                source["server_selection_timeout_ms"] = 300
            message = await cannot_start(configuration)
            assert "not initiated" in message
            assert "rs.initiate()" in message


async def test_what_lacks_the_commands_of_mongodb(redis_server: RedisServer) -> None:
    """Such as mongot, which also listens for MongoDB's protocol."""
    async with Mongod() as mongod:
        async with mongod.client() as client:
            lacks = {"failCommands": ["buildInfo"], "errorCode": 59}
            await client.admin.command({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": lacks})
        message = await cannot_start(settings(mongod.uri, redis_server.url))
    assert "source 'main' is no MongoDB: it lacks the command hello or buildInfo" in message


async def test_no_authentication_must_be_asked_for(mongo: ReplicaSet, redis_server: RedisServer) -> None:
    message = await cannot_start(settings(mongo.uri, redis_server.url), insecure_no_auth=False)
    assert "tenants_file" in message
    assert "--insecure-no-auth" in message


# --- What runs.


@pytest.mark.parametrize(
    ("taken", "asked"), [("127.0.0.1", "localhost"), ("::1", "localhost"), ("::", "0.0.0.0"), ("unix", "unix")]
)
async def test_an_address_of_which_another_program_has_a_part(taken: str, asked: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket({"127": socket.AF_INET, "uni": socket.AF_UNIX}.get(taken[:3], socket.AF_INET6)) as other:
        if other.family == socket.AF_INET6:
            other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(str(path) if taken == "unix" else (taken, 0))
        address = f"unix:{path}" if asked == "unix" else f"{asked}:{other.getsockname()[1]}"
        other.listen()
        with pytest.raises(PortInUse):
            await HealthServer(Health()).start(address)
    # What a program leaves that was killed is no other program.
    server = HealthServer(Health())
    await server.start(address)
    await server.stop()


async def test_reflection(here: Here) -> None:
    def services(port: int) -> set[str]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            known = ProtoReflectionDescriptorDatabase(channel)
            found = set(known.get_services())
            for each in found:
                if each.startswith("feedmux"):
                    assert known.FindFileContainingSymbol(each).package == "feedmux.v1"
            return found

    data = await asyncio.to_thread(services, here.api.data_port)
    assert {"feedmux.v1.ChangeFeed", "feedmux.v1.Subscriptions", "grpc.health.v1.Health"} <= data
    assert "feedmux.v1.Operator" not in data
    assert "feedmux.v1.Operator" in await asyncio.to_thread(services, here.api.operator_port)


async def test_buf_curl(api: Api, database: Documents) -> None:
    buf = Path(sys.executable).parent / "buf"
    if not buf.exists():
        pytest.skip("buf is not installed")
    request = {
        "feed": {"source": "main", "database": database.name, "collection": "c"},
        "start": {"position": ""},
        "format": "FORMAT_EXTENDED_JSON_RELAXED",
    }
    del request["start"]
    process = await asyncio.create_subprocess_exec(
        buf,
        "curl",
        "--protocol=grpc",
        "--http2-prior-knowledge",
        f"--data={json.dumps(request)}",
        f"http://127.0.0.1:{api.data_port}/feedmux.v1.ChangeFeed/Watch",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    output, decoder = "", json.JSONDecoder()
    messages: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(60):
            while len(messages) < 2:
                output += (await process.stdout.read(1 << 16)).decode()
                try:
                    message, end = decoder.raw_decode(output.lstrip())
                except ValueError:
                    assert not process.stdout.at_eof()
                    continue
                messages.append(message)
                output = output.lstrip()[end:]
                if len(messages) == 1:
                    database.c.insert_one({"n": 1})
    finally:
        process.kill()
        await process.communicate()
    assert "opened" in messages[0]
    [event] = messages[1]["batch"]["json"]
    assert json.loads(event)["fullDocument"]["n"] == 1


# --- Logs.
