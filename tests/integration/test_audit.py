"""The audit log records rejected callers and the actions of callers; secrets appear in no log."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest_asyncio
from pymongo import MongoClient

from feedmux.v1 import operator_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.tenants.registry import hash_key
from tests.conftest import RedisFactory
from tests.documents import Documents
from tests.integration.issuer import AUDIENCE, ISSUER, SigningPair, jwks
from tests.integration.servers import server_process, until
from tests.integration.tenancy import Tenancy, configuration, entry, tenancy
from tests.integration.wire import feed, refused

A, B = entry("a", "key-a-canary"), entry("b", "key-b-canary")
DRAIN = operator_pb2.DrainRequest()


@pytest_asyncio.fixture
async def site(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Tenancy]:
    async with tenancy(configuration(mongo, redis_server, tmp_path, A, B), "key-a-canary") as made:
        yield made


def lines(site: Tenancy, event: str) -> list[dict[str, Any]]:
    written = (site.path.parent / "audit.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, written) if line["event"] == event]


async def test_refusals(site: Tenancy, database: Documents) -> None:
    for key in ("", "wrong"):
        assert await site.refuses(key)
    assert [(each["reason"], each["method"]) for each in lines(site, "authentication_failed")] == [
        ("no credentials", "Watch"),
        ("unknown API key", "Watch"),
    ]
    assert all(each["peer"].startswith("ipv4:127.0.0.1:") for each in lines(site, "authentication_failed"))
    await refused(site.here.api.watch(feed("admin")).opened())
    await refused(site.here.api.operator.Drain(DRAIN, metadata=site.here.api.metadata))
    assert [(each["reason"], each["tenant"], each["credential"]) for each in lines(site, "request_denied")] == [
        ("NAMESPACE_DENIED", "a", "api_key:label of a"),
        ("METHOD_DENIED", "a", "api_key:label of a"),
    ]
    stream = await site.here.api.open(feed=feed(database.name))
    site.write(B)
    await stream.end()
    await until(lambda: lines(site, "session_revoked"))
    (revoked,) = lines(site, "session_revoked")
    assert (revoked["tenant"], revoked["method"]) == ("a", "Subscribe")


async def test_the_tenants_file(site: Tenancy) -> None:
    site.write(entry("a", "key-a-canary", "more"), entry("c"))
    await until(lambda: lines(site, "tenants_changed"))
    assert {(each["tenant"], each["reason"]) for each in lines(site, "tenants_changed")} == {
        ("a", "changed"),
        ("b", "removed"),
        ("c", "added"),
    }
    site.write_text("{")
    await until(lambda: lines(site, "tenants_refused"))


SECRETS = ("fmx_key-canary", "operator-key-canary", "redis-password-canary", "mongo-password-canary", "document-canary")


async def test_secrets_reach_no_log_no_error_no_audit(
    mongo: ReplicaSet, mongo_client: MongoClient[dict[str, Any]], redis_factory: RedisFactory, tmp_path: Path
) -> None:
    """A server at its most talkative, with a password for everything, and all that can go wrong going wrong."""
    key, operator_key, redis_password, mongo_password, document = SECRETS
    redis = await redis_factory(persistence=False, config={"requirepass": redis_password})
    signer = SigningPair("one")
    (tmp_path / "jwks.json").write_text(jwks(signer))
    configured = configuration(mongo, redis, tmp_path, entry("a", key))
    configured["operator_key_hashes"] = [hash_key(operator_key)]
    configured["jwt"] = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": str(tmp_path / "jwks.json")}
    configured["redis"]["url"] = redis.url.replace("redis://", f"redis://:{redis_password}@")
    broken = mongo.uri.replace("mongodb://", f"mongodb://user:{mongo_password}@")
    token, bad_token = signer.token(), signer.token(aud="wrong")
    said: list[str] = []

    async def end_of(call: Any) -> None:
        try:
            async with asyncio.timeout(60):
                await call
        except grpc.aio.AioRpcError as error:
            said.append(f"{error.details()} {error.debug_error_string()} {error.trailing_metadata()}")
        except TimeoutError:
            pass

    async with server_process(configured, tmp_path) as server:
        async with server.api(key) as api:
            collection = mongo_client["audit_canary"]["c"]
            pipeline = json.dumps(
                [{"$match": {"fullDocument.text": document}}, {"$addFields": {"x": {"$divide": [1, 0]}}}]
            )
            stream = await api.open(feed=feed("audit_canary", "c"), format=2)
            failing = await api.session(feed=feed("audit_canary", "c", pipeline), credit={"events": 10, "bytes": 1000})
            collection.insert_one({"text": document})
            assert document in (await stream.take(1))[0].data.decode()
            await end_of(failing.end())
            await end_of(api.watch(feed("audit_canary", "c", json.dumps([{"$out": document}]))).opened())
            await end_of(api.raw("/feedmux.v1.ChangeFeed/ResolvePosition", document.encode()))
            await end_of(api.get(document + "\0"))
            await end_of(api.operator.Drain(DRAIN, metadata=api.metadata))
            await end_of(api.operator.Drain(DRAIN, metadata=(("authorization", f"Bearer {operator_key}x"),)))
            for wrong in (key + "x", token, bad_token, token + "x"):
                async with server.api(wrong) as other:
                    await end_of(other.watch(feed("audit_canary", "c")).opened())
                    await end_of(other.watch(feed("local")).opened())
            Path(configured["tenants_file"]).write_text(f"tenants: [{{name: {key}!, password: {document}}}]")
            await until(lambda: "tenants file cannot be used" in server.log.read_text())
            await redis.kill9()
            await end_of(api.create("x", feed("audit_canary")))
        mongo_client.drop_database("audit_canary")
    # A start that fails says why, and not with what.
    for change in (
        {"sources": {"main": {"uri": broken, "server_selection_timeout_ms": 500}}},
        {"sources": {"main": {"uri": broken.replace("@", "@@")}}},
        {"redis": {"url": configured["redis"]["url"]}},
    ):
        path = tmp_path / "broken.json"
        path.write_text(json.dumps({**configured, **change}))
        said.append(await _failed_start(path))
    texts = [server.log.read_text(), (tmp_path / "audit.jsonl").read_text(), *said]
    assert "authentication_failed" in texts[1]
    for text in texts:
        for secret in (*SECRETS, token, bad_token, token.split(".")[2]):
            assert secret not in text, text[max(0, text.index(secret) - 300) :][:600]


async def _failed_start(config: Path) -> str:
    command = [sys.executable, "-m", "tests.integration.serve_process", str(config)]
    done = await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, check=False, timeout=60))
    assert done.returncode
    return (done.stdout + done.stderr).decode()
