"""`feedmux doctor`: reports each problem with the next step, and one problem does not hide another."""

import asyncio
import ipaddress
import json
import uuid
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography import x509

from feedmux.v1 import subscriptions_pb2
from feedmux_embedded import Mongod, RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server.config.load import make_config
from feedmux_server.core.check_result import CheckResult, Level
from feedmux_server.core.positions.position import Position, encode_position
from feedmux_server.core.positions.position_keys import PositionKeys, format_keys
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.doctor import examine
from feedmux_server.rpc import convert
from feedmux_server.store.signing_keys import new_key
from feedmux_server.store.store import SubscriptionStore
from tests.cli.conftest import Site, run, write_config
from tests.conftest import RedisFactory
from tests.integration.certificates import Authority
from tests.integration.redis_topologies import ask
from tests.integration.state_support import client
from tests.integration.wire import PATIENCE_S, feed

DAY_S = timedelta(days=1).total_seconds()


async def examined(timeout_s: float = 5.0, *collections: str, **values: Any) -> Mapping[str, CheckResult]:
    """The worst finding of each check."""
    ranks = {Level.OK: 0, Level.UNKNOWN: 1, Level.WARNING: 2, Level.FAILED: 3}
    worst: dict[str, CheckResult] = {}
    async for finding in examine(make_config(values), collections, timeout_s):
        known = worst.get(finding.check)
        if known is None or ranks[finding.level] > ranks[known.level]:
            worst[finding.check] = finding
        assert bool(finding.advice) or finding.level is Level.OK
    return worst


async def test_a_deployment_that_is_well(mongo: ReplicaSet, redis_factory: RedisFactory, tmp_path: Path) -> None:
    redis = await redis_factory()
    authority = Authority(tmp_path)
    authority.sign("server", x509.DNSName("feedmux.example.com"), lasts_s=90 * DAY_S)
    tls = {"certificate_file": tmp_path / "server.pem", "key_file": tmp_path / "server.key"}
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text("tenants: [{name: shop}]")
    keys = tmp_path / "position.keys"
    keys.write_text(format_keys([bytes(32)]))
    found = await examined(
        sources={"main": {"uri": mongo.uri}},
        redis={"url": redis.url},
        tls=tls,
        tenants_file=str(tenants),
        positions={"key_file": keys},
    )
    # A young replica set has a short oplog.
    assert {each.check for each in found.values() if each.level is not Level.OK} <= {"main.oplog"}
    assert "feedmux.example.com and valid for 90 days" in found["tls.certificate_file"].says
    assert found["positions"].says.endswith("position.keys: 1")
    assert {"main.deployment", "main.version", "main.permissions", "main.clock"} <= set(found)
    assert {
        "redis.version",
        "redis.eviction",
        "redis.persistence",
        "redis.layout",
        "redis.write",
        "redis.clock",
    } <= set(found)


async def test_each_thing_that_is_wrong(
    mongo: ReplicaSet, redis_factory: RedisFactory, tmp_path: Path, mongo_client: Any
) -> None:
    redis = await redis_factory(persistence=False, config={"maxmemory-policy": "allkeys-lru"})
    await ask(redis.port, "SET", "feedmux:schema", "7")
    authority = Authority(tmp_path)
    authority.sign("soon", x509.DNSName("a.example.com"), x509.IPAddress(ipaddress.ip_address("10.0.0.1")))
    mongo_client.doctored.create_collection("plain")
    try:
        found = await examined(
            5.0,
            "main:doctored.plain",
            "doctored.absent",
            "doctored.with:colon",
            "elsewhere:doctored.plain",
            sources={"main": {"uri": mongo.uri}, "broken": {"uri": "mongodb://u:secret@"}},
            redis={"url": redis.url},
            tls={"certificate_file": tmp_path / "soon.pem", "key_file": tmp_path / "soon.key"},
        )
    finally:
        mongo_client.drop_database("doctored")
    assert found["tenants"].level is Level.WARNING
    assert found["tls.certificate_file"].level is Level.WARNING
    assert "a.example.com, 10.0.0.1" in found["tls.certificate_file"].says
    assert "collMod" in found["main.images"].advice
    assert "names the source 'elsewhere'" in found["elsewhere.images"].says
    assert found["broken.uri"].level is Level.FAILED
    assert found["redis.eviction"].level is Level.FAILED
    assert found["redis.persistence"].level is Level.WARNING
    assert all("secret" not in str(each) for each in found.values())
    await ask(redis.port, "CONFIG", "SET", "maxmemory-policy", "noeviction")
    authority.sign("old", lasts_s=-60.0)
    found = await examined(
        sources={"main": {"uri": mongo.uri}},
        redis={"url": redis.url},
        tls={"certificate_file": tmp_path / "old.pem", "key_file": tmp_path / "old.key"},
    )
    assert "has expired" in found["tls.certificate_file"].says
    assert "newer feedmux" in found["redis.layout"].says
    assert found["redis.write"].level is Level.OK


async def test_what_is_away_frozen_or_unfit(tmp_path: Path) -> None:
    (closed,) = free_ports(1)
    async with Mongod() as standalone, RedisServer(persistence=False) as redis:
        redis.pause()
        async with asyncio.timeout(PATIENCE_S):
            found = await examined(
                3.0,
                sources={
                    "alone": {"uri": standalone.uri},
                    "away": {"uri": f"mongodb://127.0.0.1:{closed}/"},
                    "unnamed": {"uri": "mongodb://user:secret-canary@nowhere.invalid/?replicaSet=rs0"},
                    "srv": {"uri": "mongodb+srv://user:secret-canary@nowhere.of.invalid/"},
                    "tls": {"uri": "mongodb://user:secret-canary@h/?tls=true&tlsCAFile=/absent/ca.crt"},
                    "local": {"uri": f"mongodb://127.0.0.1:{closed}/?readConcernLevel=local"},
                },
                redis={"url": redis.url},
                tls={"certificate_file": tmp_path / "absent.pem", "key_file": tmp_path / "absent.key"},
            )
        redis.resume()
    assert "--replSet" in found["alone.deployment"].advice
    assert "sources.away.uri" in found["away.reachable"].advice
    assert f"127.0.0.1:{closed}: [Errno 111]" in found["away.reachable"].says
    assert "cannot be reached: nowhere.invalid:27017: [Errno" in found["unnamed.reachable"].says
    assert "cannot be used: " in found["srv.deployment"].says
    assert "(/absent/ca.crt: No such file or directory)" in found["tls.uri"].says
    assert all("canary" not in str(each) for each in found.values())
    assert "the option readConcernLevel does not suit" in found["local.uri"].says
    assert found["redis.reachable"].level is Level.FAILED
    assert "absent.pem cannot be read" in found["files"].says
    assert "away.oplog" not in found, "there is nothing to look at"


def position(material: bytes) -> bytes:
    """Of a time, signed with this key."""
    at = Position(bytes(8), bytes(8), ResumeToken.high_water_mark(1 << 32))
    return encode_position(at, PositionKeys([material]))


async def configured_with(
    tenants: str, material: bytes, mongo: ReplicaSet, redis: RedisServer, folder: Path
) -> dict[str, Any]:
    """The configuration of a server with these tenants, whose Redis has this key of positions."""
    (folder / "tenants.yaml").write_text(f"tenants: [{tenants}]")
    await ask(redis.port, "SET", "feedmux:position-keys", format_keys([material]))
    source = {"main": {"uri": mongo.uri}}
    return {"redis": {"url": redis.url}, "tenants_file": str(folder / "tenants.yaml"), "sources": source}


async def told_of(configured: dict[str, Any]) -> list[CheckResult]:
    """What is found of the stored subscriptions."""
    found = [each async for each in examine(make_config(configured), (), PATIENCE_S)]
    return [each for each in found if each.check == "redis.subscriptions"]


async def test_subscriptions_that_cannot_be_opened(
    mongo: ReplicaSet, redis_factory: RedisFactory, tmp_path: Path
) -> None:
    redis, material = await redis_factory(), new_key()
    configured = await configured_with("{name: shop}, {name: stock}", material, mongo, redis, tmp_path)
    stored = convert.definition(subscriptions_pb2.Subscription(feed=feed("db", "c")))
    made = {
        "good": position(material),
        "old": b"\xf1" + bytes(60),
        "other": position(new_key()),
        "newer": position(material),
        "half": b"",
    }
    async with client(redis.url) as connected:
        store = SubscriptionStore(connected, lease_s=30.0)
        for name, place in made.items():
            definition = stored + b"\xc2\x3e\x01x" * (name == "newer")
            await store.create(
                "stock", name, definition=definition, etag="0", position=place, cluster_time=1, order=b""
            )
            if name == "good":
                found = await examined(PATIENCE_S, **configured)
                assert found["redis.subscriptions"].level is Level.OK
                assert "1 subscriptions" in found["redis.subscriptions"].says
        await connected.hdel("feedmux:1:{stock/half}", "position")
    told = await told_of(configured)
    assert {each.level for each in told} == {Level.FAILED}
    assert {name for name in made for each in told if f"subscription {name} " in each.says} == made.keys() - {"good"}


async def test_stored_pipelines(mongo: ReplicaSet, redis_factory: RedisFactory, tmp_path: Path) -> None:
    redis, material = await redis_factory(), new_key()
    configured = await configured_with(
        "{name: shop}, {name: trusted, pipelines: any}", material, mongo, redis, tmp_path
    )
    texts = {
        "fine": '[{"$match": {"v": {"$regex": "^a"}}}]',
        "misread": '[{"$match": {"fullDocument.name": {"$regex": "^a", "$ne": "abc"}}}]',
        "rejected": '[{"$match": {"documentKey._id": {"$oid": "abc"}}}]',
        "untrusted": '[{"$set": {"a": {"$rand": {}}}}]',
    }
    async with client(redis.url) as connected:
        store = SubscriptionStore(connected, lease_s=30.0)
        for tenant in ("shop", "trusted"):
            for name, text in texts.items():
                wanted = subscriptions_pb2.Subscription(feed=feed("db", "c", text))
                definition = convert.definition(wanted)
                place = position(material)
                await store.create(
                    tenant, name, definition=definition, etag="0", position=place, cluster_time=1, order=b""
                )
    told = {" ".join(each.says.split()[1:5]).rstrip(","): each for each in await told_of(configured)}
    assert {name: each.level for name, each in told.items()} == {
        "misread of tenant shop": Level.WARNING,
        "misread of tenant trusted": Level.WARNING,
        "rejected of tenant shop": Level.FAILED,
        "rejected of tenant trusted": Level.FAILED,
        "untrusted of tenant shop": Level.FAILED,
    }
    assert "pipeline.0.$match.fullDocument.name" in told["misread of tenant shop"].says
    assert "pipeline.0.$match.documentKey._id: $oid marks" in told["rejected of tenant shop"].says


def test_json_and_the_exit_code(redis_server: RedisServer, tmp_path: Path) -> None:
    (closed,) = free_ports(1)
    sources = {"main": {"uri": f"mongodb://127.0.0.1:{closed}/"}}
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text(f"tenants: [{{name: t{uuid.uuid4().hex[:10]}}}]")
    redis = {"url": redis_server.url}
    config = write_config(tmp_path, sources=sources, redis=redis, tenants_file=str(tenants))
    done = run("doctor", "--config", config, "--json", "--timeout", "2")
    assert done.returncode == 1
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ok"] is False
    assert told["counts"]["failed"] == 1
    assert {"check", "level", "says", "advice"} == set(told["findings"][0])
    wrong = run("doctor", "--config", write_config(tmp_path, sources={}))
    assert wrong.returncode == 1
    assert "sources" in wrong.stdout
    assert "used:?" not in wrong.stdout
    assert run("doctor").returncode == 2
    assert run("doctor", "--config", config, "--collection", "shop").returncode == 2
    for timeout in ("0", "inf", "nan"):
        assert run("doctor", "--config", config, "--timeout", timeout).returncode == 2


def test_as_a_client(site: Site, redis_server: RedisServer) -> None:
    well = site.run("doctor", "--endpoint", site.endpoint)
    assert well.returncode == 0, well.stdout
    assert "SERVING" in well.stdout
    stranger = site.run("doctor", "--endpoint", site.endpoint, FEEDMUX_API_KEY="wrong")
    assert stranger.returncode == 1
    assert "✗ credentials" in stranger.stdout
    nobody = run("doctor", "--endpoint", f"localhost:{free_ports(1)[0]}")
    assert nobody.returncode == 1
    assert "nothing listens on localhost" in nobody.stdout
    other = run("doctor", "--endpoint", f"localhost:{redis_server.port}", "--timeout", "2")
    assert other.returncode == 1
    assert "does not answer as a gRPC server" in other.stdout
