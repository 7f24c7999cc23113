"""Passwords of MongoDB and Redis that change while the server runs, and come from files."""

import ipaddress
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from redis.asyncio import Redis

from feedmux_embedded import RedisServer, ReplicaSet
from tests.documents import Client
from tests.integration.certificates import Authority
from tests.integration.redis_topologies import ask, sentinels
from tests.integration.servers import Here, guarded, serving, settings, until
from tests.integration.wire import LATEST, feed


async def test_new_connections_use_the_renewed_certificates(tmp_path: Path, redis_server: RedisServer) -> None:
    authority, both = tmp_path / "ca.pem", tmp_path / "both.pem"

    def renew() -> None:
        Authority(tmp_path).sign("mongod", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        both.write_bytes((tmp_path / "mongod.pem").read_bytes() + (tmp_path / "mongod.key").read_bytes())

    renew()
    tls = ["--tlsMode", "allowTLS", "--tlsCertificateKeyFile", both, "--tlsCAFile", authority]
    arguments = [*map(str, tls), "--tlsAllowConnectionsWithoutCertificates"]
    async with ReplicaSet(oplog_mb=64, arguments=arguments) as mongo:
        uri = f"{mongo.uri}&tls=true&tlsCAFile={authority}"
        configuration = settings(uri, redis_server.url) | {"reload_s": 0.05}
        del configuration["sources"]["other"]
        async with serving(configuration) as here:
            with Client(mongo.uri) as admin:
                session = await here.api.open(feed=feed("shop", "c"))
                admin.shop.c.insert_one({"n": 1})
                assert await session.numbers(1) == [1]
                source = here.server.service.manager.sources["main"]
                before = source._commands.client
                renew()
                admin.admin.command("rotateCertificates")

                async def is_read() -> bool:
                    return source._commands.client is not before

                await until(is_read)
                other = await here.api.open(feed=feed("shop", "another"))
                admin.shop.another.insert_one({"n": 2})
                assert await other.numbers(1) == [2]
                admin.shop.c.insert_one({"n": 3})
                assert await session.numbers(1) == [3], "the open stream continues"
                session.cancel()
                other.cancel()


async def test_new_connections_use_the_new_passwords(tmp_path: Path) -> None:
    password, user, redis_password = tmp_path / "password", tmp_path / "user", tmp_path / "redis"
    password.write_text("first/@canary\n")
    user.write_text("feeds")
    redis_password.write_text("redis-first-canary")
    async with (
        guarded(tmp_path) as (admin, address),
        RedisServer() as redis,
        Redis.from_url(redis.url) as operator,
    ):
        await operator.acl_setuser("feedmux", True, passwords=["+redis-first-canary"], keys=["*"], categories=["+@all"])
        admin.admin.command("createUser", "feeds", pwd="first/@canary", roles=["readAnyDatabase"])
        configuration = settings(f"mongodb://{address}", redis.url) | {"reload_s": 0.05}
        del configuration["sources"]["other"]
        configuration["sources"]["main"] |= {"username_file": str(user), "password_file": str(password)}
        configuration["redis"] |= {"username": "feedmux", "password_file": str(redis_password)}
        async with serving(configuration) as here:
            source = here.server.service.manager.sources["main"]
            await here.api.create("s", feed("shop", "c"), LATEST)
            session = await here.api.open("s")
            admin.shop.c.insert_one({"n": 1})
            assert await session.numbers(1) == [1]
            before = source._commands.client
            admin.admin.command("createUser", "other", pwd="second-canary", roles=["readAnyDatabase"])
            password.write_text("second-canary")
            user.write_text("other")

            async def is_read() -> bool:
                return source._commands.client is not before

            await until(is_read)
            admin.shop.c.insert_one({"n": 2})
            assert await session.numbers(1) == [2], "the open stream continues"
            admin.admin.command("dropUser", "feeds")
            other = await here.api.open(feed=feed("shop", "another"))
            admin.shop.another.insert_one({"n": 3})
            assert await other.numbers(1) == [3]
            admin.shop.c.insert_one({"n": 4})
            assert await session.numbers(1) == [4], "the stream of the dropped user was opened again"
            other.cancel()
            new = ["+redis-second-canary"]
            await operator.acl_setuser("feedmux", True, passwords=new, reset_passwords=True)
            redis_password.write_text("redis-second-canary")
            await operator.client_kill_filter(skipme=True)
            await until(lambda: _is_available(here))
            await session.ack_and_wait(3)
            await session.close()


async def test_new_connections_to_the_sentinels_use_the_new_password(
    tmp_path: Path, mongo: ReplicaSet, name: str
) -> None:
    password = tmp_path / "password"
    password.write_text("first-canary\n")
    async with sentinels(tmp_path) as watched:

        async def admit(word: str) -> None:
            for port in watched.known_ports:
                await ask(port, "ACL", "SETUSER", "feedmux", "on", "resetpass", f">{word}", "+@all", "~*", "&*")
                await ask(port, "CLIENT", "KILL", "USER", "feedmux")

        await admit("first-canary")
        configuration = settings(mongo.uri, watched.url) | {"reload_s": 0.05}
        configuration["redis"] |= {"sentinel_username": "feedmux", "sentinel_password_file": str(password)}
        async with serving(configuration) as here:
            await here.api.create(name, feed("shop", "c"), LATEST)
            await admit("second-canary")
            await ask((await watched.primary()).port, "CLIENT", "KILL", "TYPE", "normal")
            with pytest.raises(grpc.aio.AioRpcError):
                await here.api.get(name)
            password.write_text("second-canary\n")
            await until(lambda: _is_available(here, name))


async def _is_available(here: Here, name: str = "s") -> bool:
    try:
        await here.api.get(name)
    except grpc.aio.AioRpcError:  # until the file is read again
        return False
    return True
