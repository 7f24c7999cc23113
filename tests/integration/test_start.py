"""Configurations that the server rejects, and the next step it reports; reflection, health, `buf curl`; its logs."""

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
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from pymongo import MongoClient
from pymongo.database import Database

from feedmux_embedded import Mongod, RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server.app import CannotStart, running
from feedmux_server.config.server import Config
from feedmux_server.tenants.registry import hash_key
from tests.conftest import RedisFactory
from tests.integration.servers import KEY_A, OPERATOR_KEY, Here, server_process, settings, tenants_file, until
from tests.integration.wire import Api, at, feed, refused

Documents = Database[dict[str, Any]]


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


async def test_standalone_mongod(redis_server: RedisServer) -> None:
    async with Mongod() as mongod:
        uri = f"mongodb://{mongod.address}/"
        message = await cannot_start(settings(uri, redis_server.url))
    assert "standalone" in message
    assert "--replSet" in message
    assert "rs.initiate" in message


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


async def test_mongod_out_of_reach(redis_server: RedisServer) -> None:
    [port] = free_ports(1)
    configuration = settings(f"mongodb://user:secret-canary@127.0.0.1:{port}/?replicaSet=x", redis_server.url)
    for source in configuration["sources"].values():
        source["server_selection_timeout_ms"] = 300
    message = await cannot_start(configuration)
    assert "main" in message
    assert "canary" not in message


@pytest.mark.parametrize("uri", ["", "mongodb://a:secret-canary@@@/", "mongodb://h/?readPreference=canary"])
async def test_unusable_uri(redis_server: RedisServer, uri: str) -> None:
    message = await cannot_start(settings(uri, redis_server.url))
    assert "URI" in message
    assert "canary" not in message


@pytest.mark.parametrize("option", ["readConcernLevel=local", "readconcernlevel=linearizable", "timeoutMS=5000"])
async def test_an_option_with_which_every_feed_would_fail(
    mongo: ReplicaSet, redis_server: RedisServer, option: str
) -> None:
    message = await cannot_start(settings(f"{mongo.uri}&{option}", redis_server.url))
    assert message.startswith(f"sources.main.uri: the option {option.partition('=')[0]} ")
    assert message.endswith("Leave it out")


async def test_redis_out_of_reach(mongo: ReplicaSet) -> None:
    [port] = free_ports(1)
    message = await cannot_start(settings(mongo.uri, f"redis://:secret-canary@127.0.0.1:{port}/0"))
    assert f"127.0.0.1:{port}" in message
    assert "cannot be reached" in message
    assert "canary" not in message


async def test_unusable_redis_url(mongo: ReplicaSet) -> None:
    message = await cannot_start(settings(mongo.uri, "http://:secret-canary@localhost"))
    assert "Redis URL" in message
    assert "canary" not in message


async def test_evicting_redis(mongo: ReplicaSet, redis_factory: RedisFactory) -> None:
    redis = await redis_factory(config={"maxmemory-policy": "allkeys-lru"})
    message = await cannot_start(settings(mongo.uri, redis.url))
    assert "allkeys-lru" in message
    assert "noeviction" in message


async def test_redis_wants_a_password(mongo: ReplicaSet, redis_factory: RedisFactory) -> None:
    redis = await redis_factory(config={"requirepass": "secret-canary"})
    message = await cannot_start(settings(mongo.uri, redis.url))
    assert "password" in message
    assert "canary" not in message


@pytest.mark.parametrize("listener", ["data", "operator", "health"])
async def test_port_in_use(mongo: ReplicaSet, redis_server: RedisServer, listener: str) -> None:
    configuration = settings(mongo.uri, redis_server.url)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        configuration["listen"][listener] = address
        message = await cannot_start(configuration)
    assert address in message
    assert f"listen.{listener}" in message


async def test_no_authentication_must_be_asked_for(mongo: ReplicaSet, redis_server: RedisServer) -> None:
    message = await cannot_start(settings(mongo.uri, redis_server.url), insecure_no_auth=False)
    assert "tenants_file" in message
    assert "--insecure-no-auth" in message


@pytest.mark.parametrize(
    "content", [None, "{", "[]", "tenants: []", "tenants: [{name: a, api_key_hashes: [secret-canary]}]"]
)
async def test_unusable_tenants_file(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "tenants.yaml"
    if content is not None:
        path.write_text(content)
    configuration = settings(mongo.uri, redis_server.url)
    configuration["tenants_file"] = str(path)
    message = await cannot_start(configuration, insecure_no_auth=False)
    assert str(path) in message
    assert "canary" not in message


async def test_unreadable_certificate(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> None:
    configuration = settings(mongo.uri, redis_server.url)
    configuration["tls"] = {"certificate_file": str(tmp_path / "none"), "key_file": str(tmp_path / "none")}
    assert str(tmp_path / "none") in await cannot_start(configuration)


async def test_certificate_that_is_none(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    configuration = settings(mongo.uri, redis_server.url)
    configuration["tls"] = {"certificate_file": str(tmp_path / "junk"), "key_file": str(tmp_path / "junk")}
    assert "tls" in (await cannot_start(configuration)).lower()


# --- What runs.


async def test_health(here: Here) -> None:
    for port in (here.api.data_port, here.api.operator_port, here.api.health_port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", "feedmux.v1.ChangeFeed", "feedmux.v1.Subscriptions", "feedmux.v1.Operator"):
                reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
                assert reply.status == health_pb2.HealthCheckResponse.SERVING


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


async def test_logs_hold_no_secrets(
    mongo: ReplicaSet,
    mongo_client: MongoClient[dict[str, Any]],
    redis_factory: RedisFactory,
    database: Documents,
    name: str,
    tmp_path: Path,
) -> None:
    redis = await redis_factory(config={"requirepass": "password-canary"})
    url = redis.url.replace("redis://", "redis://:password-canary@")
    configuration = settings(mongo.uri, url)
    configuration["tenants_file"] = str(tenants_file(tmp_path))
    configuration["operator_key_hashes"] = [hash_key(OPERATOR_KEY)]
    async with server_process(configuration, tmp_path) as server:
        async with server.api("unknown-key-canary") as nobody:
            assert (await refused(nobody.page())).reason == "UNAUTHENTICATED"
        async with server.api(KEY_A) as api:
            wanted = feed(database.name, "c")
            await api.create(name, wanted)
            session = await api.open(name)
            database.c.insert_one({"_id": "id-canary", "n": 0, "text": "document-canary"})
            await session.take(1)
            token = session.resume_token
            await refused(api.watch(feed(database.name, "c", '[{"$match": {"$canary": "pipeline-canary"}}]')).opened())
            await refused(api.watch(wanted, at(position=b"position-canary")).opened())
            failing = feed(database.name, "c", '[{"$addFields": {"x": {"$toInt": "$fullDocument.text"}}}]')
            bad = api.watch(failing)
            await bad.opened()
            scope = f"{database.name}.c"
            data = {"failCommands": ["getMore"], "appName": "feedmux", "errorCode": 43, "namespace": scope}
            mongo_client.admin.command("configureFailPoint", "failCommand", mode={"times": 2}, data=data)
            database.c.insert_one({"_id": "other-canary", "n": 1, "text": "document-canary"})
            await bad.end()
            await session.take(1)
            await until(lambda: "resumed after an error" in server.log.read_text())
            mongo_client.admin.command("configureFailPoint", "failCommand", mode="off")
            await redis.kill9()
            await session.ack(2)
            await session.until(lambda: session.notices)
            session.cancel()
            await refused(api.get(name))
        await server.process.terminate()
    text = server.log.read_text()
    assert "resumed after an error" in text
    assert "canary" not in text
    assert bytes(token).hex() not in text
    for part in ("82", "_data"):
        assert f'"{part}' not in text
    for line in text.splitlines():
        assert json.loads(line)["level"]


@pytest.mark.parametrize("content", [None, "", "c2hvcnQ=", "secret-canary!"])
async def test_unusable_key_file(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "positions.keys"
    if content is not None:
        path.write_text(content)
    configuration = settings(mongo.uri, redis_server.url) | {"positions": {"key_file": str(path)}}
    message = await cannot_start(configuration)
    assert "positions.key_file" in message
    assert "canary" not in message
