"""Redis behind sentinels and as a cluster, with failovers, and with TLS and users. All servers are real."""

import asyncio
import ipaddress
import signal
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from redis.asyncio import RedisCluster
from redis.crc import key_slot

from feedmux_embedded import RedisServer
from feedmux_server.core.check_result import CheckResult, Level
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.store.checks import (
    RedisUnavailable,
    check_eviction,
    check_redis,
    check_writable,
    examine_clock,
    examine_redis,
    examine_sentinels,
    probe,
)
from feedmux_server.store.committer import Committer
from feedmux_server.store.connection import Client, RedisAccess, StartupError, connect
from feedmux_server.store.model import CommitRequest, CommitStatus, RestoreRequest
from feedmux_server.store.replica_checks import examine_replicas
from feedmux_server.store.store import SubscriptionStore
from tests.conftest import RedisFactory
from tests.integration.certificates import Authority
from tests.integration.redis_topologies import (
    SERVICE,
    Cluster,
    Sentinels,
    ask,
    cluster,
    cluster_of_one,
    is_replica,
    sentinels,
)
from tests.integration.servers import until
from tests.integration.state_support import Recorder, commit, create, place, place_of, running, submit
from tests.integration.tls_front import Front, fronted
from tests.integration.wire import PATIENCE_S

COUNT = 60


async def attached(store: SubscriptionStore, committer: Committer, names: list[str]) -> dict[str, tuple[Any, Recorder]]:
    found: dict[str, tuple[Any, Recorder]] = {}
    for name in names:
        await until(partial(is_created, store, name))
        stored, lease = await store.leases.open("t", name, instance_id="me")
        recorder = Recorder()
        found[name] = committer.attach(lease, stored, recorder), recorder
    return found


async def is_created(store: SubscriptionStore, name: str) -> bool:
    """Whether a replica has confirmed it, too. On a busy machine that may take longer than one call waits."""
    try:
        await create(store, "t", name)
    except FeedmuxError as error:
        if error.metadata.get("redis_error") != "NOT_REPLICATED":
            raise
        return False
    return True


async def test_a_cluster_commits_on_every_node_in_one_pass() -> None:
    async with cluster(config={"cluster-require-full-coverage": "no"}) as nodes, aclosing(connect(nodes.url)) as client:
        assert isinstance(client, RedisCluster)
        assert await check_redis(client, nodes.url) == ()
        await add_user(nodes.servers)
        limited = connect(nodes.url, RedisAccess("feedmux", "secret"))
        assert (await check_redis(limited, nodes.url), (await probe(limited)).level) == ((), Level.OK)
        await limited.aclose()
        store = SubscriptionStore(client, lease_s=30.0)
        committer = Committer(store.leases, interval_s=0.02)
        names = [f"s{number}" for number in range(COUNT)]
        sessions = await attached(store, committer, names)
        used = {client.keyslot(f"feedmux:1:{{t/{name}}}") * 3 // 16384 for name in names}
        assert used == {0, 1, 2}, "all nodes have some"
        async with running(committer):
            for handle, _ in sessions.values():
                submit(handle, 7)
            await until(lambda: all(recorder.commits for _, recorder in sessions.values()))
        for name in names:
            assert (await store.get("t", name)).position == place(7).position
        page, after = await store.list("t", page_size=40)
        rest, _ = await store.list("t", page_size=40, after=after)
        assert sorted(each.name for each in (*page, *rest)) == sorted(names)
        # Scripts that one node has forgotten are sent to it again.
        await ask(nodes.servers[1].port, "SCRIPT", "FLUSH")
        assert (await store.get("t", names[0])).active
        await asyncio.gather(*(store.get("t", name) for name in names))
        # With one node unavailable, commits to the other nodes succeed, and commits to this node wait.
        await nodes.servers[2].kill9()
        away = {name for name in names if client.keyslot(f"feedmux:1:{{t/{name}}}") >= 10923}
        async with running(committer):
            for handle, _ in sessions.values():
                submit(handle, 9)
            here = [recorder for name, (_, recorder) in sessions.items() if name not in away]
            gone = [recorder for name, (_, recorder) in sessions.items() if name in away]
            await until(lambda: all(recorder.available == [False] for recorder in gone))
            await until(lambda: all(recorder.commits[-1][0] == 9 for recorder in here))
            await nodes.servers[2].restart()
            await until(lambda: all(recorder.commits[-1][0] == 9 for _, recorder in sessions.values()))
        assert all(recorder.causes == [] for _, recorder in sessions.values())


async def test_a_cluster_of_one_node() -> None:
    async with cluster_of_one() as server:
        url = f"redis+cluster://127.0.0.1:{server.port}"
        async with aclosing(connect(url)) as client:
            assert await check_redis(client, url) == ()
            assert (await examine_clock(client)).level is Level.OK
            assert (await probe(client)).level is Level.OK
            assert await check_eviction(client, url)
            # Connections that Redis or a proxy has closed are not used.
            assert isinstance(client, RedisCluster)
            store = SubscriptionStore(client, lease_s=30.0)
            await create(store, "t", "a")
            await asyncio.gather(*(store.get("t", "a") for _ in range(8)))
            [node] = client.get_primaries()
            readers = [reader for connection in node._free if (reader := connection._reader)]
            assert len(readers) >= 8
            await ask(server.port, "CLIENT", "KILL", "TYPE", "normal")
            await until(lambda: all(reader.at_eof() for reader in readers))
            for _ in readers:
                await store.get("t", "a")
            await ask(server.port, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            with pytest.raises(FeedmuxError, match="allkeys-lru"):
                await check_eviction(client, url)


async def test_a_whole_cluster_goes_away_and_comes_back() -> None:
    async with cluster() as nodes, aclosing(connect(nodes.url)) as client:
        store = SubscriptionStore(client, lease_s=30.0, timeout_s=1.5)
        committer = Committer(store.leases, interval_s=0.02)
        sessions = await attached(store, committer, ["a", "b", "c"])
        async with running(committer):
            for server in nodes.servers:
                await server.kill9()
            for handle, _ in sessions.values():
                submit(handle, 7)
            await until(lambda: all(recorder.available == [False] for _, recorder in sessions.values()))
            await says_that_it_is_away(client, nodes.url)
            stranger = connect(nodes.url)
            await says_that_it_is_away(stranger, nodes.url)
            await stranger.aclose()
            for server in nodes.servers:
                await server.restart()
            await until(lambda: all(recorder.commits for _, recorder in sessions.values()))
        assert all(recorder.causes == [] for _, recorder in sessions.values())


async def says_that_it_is_away(client: Client, url: str) -> None:
    with pytest.raises(RedisUnavailable, match=r"redis\.url"):
        await check_redis(client, url)
    for call in (check_writable(client), SubscriptionStore(client, lease_s=5.0).get("t", "a")):
        with pytest.raises(FeedmuxError) as caught:
            await call
        assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE


@pytest.mark.parametrize("fault", ["kill", pytest.param("freeze", marks=pytest.mark.full)])
async def test_a_cluster_node_fails_over_while_commits_flow(fault: str) -> None:
    async with cluster() as nodes, aclosing(connect(nodes.url)) as client:
        await commits_through_failover(client, nodes, fault)


@pytest.mark.parametrize(("control_replicas", "endpoints"), [(None, "ip"), (0, "ip"), (None, "unknown-endpoint")])
async def test_every_call_works_while_a_slot_moves(
    control_replicas: int | None, endpoints: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The keys of the slot are at both nodes, or at the new one; the layout still names the old one. The slot of the
    last key has moved, and is being moved on."""
    config = {"cluster-preferred-endpoint-type": endpoints}
    async with cluster(config=config) as nodes, aclosing(connect(nodes.url)) as client:
        # The first primary has a replica.
        store = SubscriptionStore(client, lease_s=30.0, timeout_s=PATIENCE_S, control_replicas=control_replicas)
        names = [name for name in (f"s{number}" for number in range(500)) if _slot(name) < 5461][:4]
        source, target, third = nodes.servers[:3]
        for name in (*names[:2], names[3]):
            await create(store, "t", name)
        for name in names:
            await nodes.begin_to_move(_slot(name), source, target)
        await nodes.move(_key("t", names[0]), source, target)
        await nodes.move(_key("t", names[3]), source, target)
        await nodes.end_move(_slot(names[3]), target)
        await nodes.begin_to_move(_slot(names[3]), target, third)
        await nodes.move(_key("t", names[3]), target, third)
        for name in names:
            if name == names[2]:
                await create(store, "t", name)
            assert place_of(await store.get("t", name)) == place(0)
            stored, lease = await store.leases.open("t", name, instance_id="i")
            [outcome] = await store.leases.commit_many([CommitRequest(lease, place(4), 0)])
            assert outcome.status is CommitStatus.OK
            await store.leases.release(lease)
            to = place(2)
            await store.seek("t", name, position=to.position, cluster_time=to.cluster_time, order=to.order)
            await store.update("t", name, definition=b"x", etag="x", expected_etag=stored.etag)
        assert [each.name for each in (await store.list("t", page_size=9))[0]] == sorted(names)
        assert isinstance(client, RedisCluster)
        assert {node.host for node in client.get_nodes()} == {"127.0.0.1"}
        for name in names:
            await store.delete("t", name)
        assert not [each for each in caplog.records if each.name.startswith("feedmux")]


async def test_a_key_is_written_anew_where_it_is_while_its_slot_moves() -> None:
    """A script that removed the key first could not write it: a key that is gone belongs to the other node."""
    async with cluster() as nodes, aclosing(connect(nodes.url)) as client:
        store = SubscriptionStore(client, lease_s=30.0, timeout_s=PATIENCE_S)
        committer = Committer(store.leases, interval_s=0.02)
        lost, deleted = [name for name in (f"s{number}" for number in range(500)) if _slot(name) < 5461][:2]
        [(handle, recorder)] = (await attached(store, committer, [lost])).values()
        await ask(nodes.servers[0].port, "HDEL", _key("t", lost), "etag")
        await create(store, "t", deleted)
        await store.delete("t", deleted)
        for name in (lost, deleted):
            await nodes.begin_to_move(_slot(name), *nodes.servers[:2])
        created = await create(store, "t", deleted)
        assert created.seek_epoch == created.epoch, "an ack of the deleted subscription would count"
        async with running(committer):
            submit(handle, 7)
            await until(lambda: bool(recorder.commits))
        assert recorder.causes == []
        for name in (lost, deleted):
            assert await ask(nodes.servers[0].port, "PTTL", _key("t", name)) == -1, "absent, or it expires"


async def test_a_cluster_is_found_again_by_its_configured_address() -> None:
    """All its nodes have other addresses than before, as after a restart in Kubernetes."""
    async with cluster() as former, cluster() as present, AsyncExitStack() as stack:
        ports = [former.known_ports[0]]

        async def to_a_node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            from_node, to_node = await asyncio.open_connection("127.0.0.1", ports[-1])
            await asyncio.gather(_copy(reader, to_node), _copy(from_node, writer))

        front = await stack.enter_async_context(await asyncio.start_server(to_a_node, "127.0.0.1", 0))
        client = connect(f"redis+cluster://127.0.0.1:{front.sockets[0].getsockname()[1]}")
        stack.push_async_callback(client.aclose)
        store = SubscriptionStore(client, lease_s=30.0)
        committer = Committer(store.leases, interval_s=0.02)
        [(handle, recorder)] = (await attached(store, committer, ["a"])).values()
        ports.append(present.known_ports[0])
        for server in former.servers:
            await server.kill9()
        async with running(committer):
            submit(handle, 7)
            await until(lambda: bool(recorder.commits))
        assert recorder.causes == []


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_a_slot_without_a_node_fails_only_its_own_keys() -> None:
    async with cluster(config={"cluster-require-full-coverage": "no"}) as nodes:
        slots = {name: _slot(name) for name in ("s0", "s1", "s2", "s3")}
        for server in nodes.servers[:3]:
            await ask(server.port, "CLUSTER", "DELSLOTS", slots["s3"])
        async with aclosing(connect(nodes.url)) as client:
            store = SubscriptionStore(client, lease_s=30.0)
            for name in ("s0", "s1", "s2"):
                await until(partial(is_created, store, name))
            with pytest.raises(FeedmuxError) as caught:
                await store.get("t", "s3")
            assert caught.value.metadata == {"redis_error": "CLUSTERDOWN"}


def _key(tenant: str, name: str) -> str:
    return f"feedmux:1:{{{tenant}/{name}}}"


def _slot(name: str) -> int:
    return int(key_slot(_key("t", name).encode()))


async def commits_through_failover(client: Client, nodes: Cluster | Sentinels, fault: str) -> None:
    """A primary is killed or freezes while 60 sessions commit: their commits wait, and then all are taken."""
    store = SubscriptionStore(client, lease_s=30.0, timeout_s=1.5)
    committer = Committer(store.leases, interval_s=0.02)
    names = [f"s{number}" for number in range(COUNT)]
    sessions = await attached(store, committer, names)
    number = 0

    def ack() -> None:
        nonlocal number
        number += 1
        for handle, _ in sessions.values():
            submit(handle, number)

    async with running(committer):
        async with asyncio.timeout(PATIENCE_S):
            while not all(len(recorder.commits) > 3 for _, recorder in sessions.values()):
                ack()
                await asyncio.sleep(0.01)
        if fault == "kill":
            await nodes.servers[0].kill9()
        else:
            nodes.servers[0].pause()
        async with asyncio.timeout(PATIENCE_S):
            while not any(False in recorder.available for _, recorder in sessions.values()):
                ack()
                await asyncio.sleep(0.05)
        ack()
        await until(lambda: all(r.commits[-1][0] == number for _, r in sessions.values()))
    for name, (handle, recorder) in sessions.items():
        # What a failover loses is the store's newest writes; the owner brings them back, and is not fenced by it.
        assert recorder.causes == []
        assert [sequence for sequence, _ in recorder.commits] == sorted(sequence for sequence, _ in recorder.commits)
        assert (await store.get("t", name)).position == place(number).position
        assert handle.attached
    if fault == "freeze":
        # It resumes and still acts as the primary, and the server must not trust it.
        nodes.servers[0].resume()
        async with running(committer):
            async with asyncio.timeout(PATIENCE_S):
                while not await is_replica(nodes.servers[0].port):
                    ack()
                    await asyncio.sleep(0.05)
            ack()
            await until(lambda: all(r.commits[-1][0] == number for _, r in sessions.values()))
        assert all(recorder.causes == [] for _, recorder in sessions.values())
        for name in names:
            assert (await store.get("t", name)).position == place(number).position


async def test_sentinels_name_another_primary_while_commits_flow(tmp_path: Path) -> None:
    async with sentinels(tmp_path) as nodes, aclosing(connect(nodes.url)) as client:
        assert await check_redis(client, nodes.url) == ()
        [finding] = await examine_sentinels(client)
        assert finding.level is Level.OK
        before = await nodes.primary()
        await commits_through_failover(client, nodes, "freeze")
        assert (await nodes.primary()).port != before.port
        # A frozen sentinel does not stand in the way of the others.
        nodes.sentinels[0].send_signal(signal.SIGSTOP)
        found = await examine_sentinels(client)
        assert [each.level for each in found] == [Level.WARNING]
        async with aclosing(connect(nodes.url)) as again:
            assert await SubscriptionStore(again, lease_s=5.0).names.has("t", "s1")


async def test_frozen_sentinels_do_not_hide_one_that_answers(tmp_path: Path) -> None:
    async with sentinels(tmp_path) as nodes, AsyncExitStack() as stack:
        [port] = nodes.known_ports[:1]
        frozen = [
            await stack.enter_async_context(await asyncio.start_server(_say_nothing, "127.0.0.1", 0)) for _ in range(3)
        ]
        ports = [each.sockets[0].getsockname()[1] for each in frozen]
        named = ",".join(f"127.0.0.1:{each}" for each in (*ports, port))
        client = connect(f"redis+sentinel://{named}/{SERVICE}")
        stack.push_async_callback(client.aclose)
        store = SubscriptionStore(client, lease_s=5.0, timeout_s=PATIENCE_S)
        assert not await store.names.has("t", "s1")


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As one that is frozen: its machine takes the connection."""
    await reader.read(-1)
    writer.close()


async def test_tls_and_a_user_with_no_more_than_it_needs(redis_factory: RedisFactory, tmp_path: Path) -> None:
    context, access = tls(tmp_path)
    server = await redis_factory()
    await add_user([server])
    async with fronted(server.port, context) as front:
        url = f"rediss://localhost:{front.port}/0"
        await lets_in_by_certificate_alone(url, access)
    with pytest.raises(StartupError, match=r"redis\.certificate_file and redis\.key_file"):
        connect(url, RedisAccess(certificate_file=access.ca_file))
    with pytest.raises(StartupError, match=r"redis\.ca_file: .*/absent\.pem cannot be read"):
        connect(url, RedisAccess(ca_file=tmp_path / "absent.pem"))
    with pytest.raises(StartupError, match="begin it with rediss"):
        connect(server.url, RedisAccess(ca_file=access.ca_file))


async def test_certificates_that_are_renewed_need_no_restart(redis_factory: RedisFactory, tmp_path: Path) -> None:
    """Connections that were made with the former ones connect again with the new ones."""
    context, access = tls(tmp_path)
    server = await redis_factory()
    await add_user([server])
    async with (
        fronted(server.port, context) as front,
        aclosing(connect(f"rediss://localhost:{front.port}/0", access)) as client,
    ):
        assert await is_writable(client)
        front.context, _ = tls(tmp_path)
        front.cut()
        await until(partial(is_writable, client))


async def is_writable(client: Client) -> bool:
    with suppress(FeedmuxError):
        await check_writable(client)
        return True
    return False


@pytest.mark.parametrize("kind", ["server", "sentinels", "cluster"])
async def test_what_is_wrong_at_a_replica_is_found_before_a_failover(kind: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        if kind == "cluster":
            in_cluster = await stack.enter_async_context(cluster())
            servers, url = in_cluster.servers, in_cluster.url

            async def listed() -> bool:
                slots = [await ask(each.port, "CLUSTER", "SLOTS") for each in servers]
                return all(str(servers[-1].port) in str(each) for each in slots)

            await until(listed, every_s=0.1)
        else:
            watched = await stack.enter_async_context(sentinels(tmp_path))
            servers, url = watched.servers, watched.url if kind == "sentinels" else watched.servers[0].url
        await add_user(servers)
        replica = servers[-1].port

        async def found() -> list[CheckResult]:
            async with aclosing(connect(url, RedisAccess("feedmux", "secret"))) as client:
                results = await examine_replicas(client, url, timeout_s=PATIENCE_S)
            assert all(str(replica) in each.says for each in results)
            return results

        def levels(of: list[CheckResult]) -> list[tuple[str, Level]]:
            return [(each.check, each.level) for each in of]

        assert levels(await found()) == [("redis.replicas", Level.OK)]
        await ask(replica, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        await ask(replica, "CONFIG", "SET", "appendonly", "no")
        await ask(replica, "ACL", "SETUSER", "feedmux", "-pexpire")
        wrong = await found()
        assert levels(wrong) == [
            ("redis.eviction", Level.FAILED),
            ("redis.persistence", Level.WARNING),
            ("redis.replicas", Level.FAILED),
        ]
        assert "PEXPIRE" in wrong[-1].says
        await ask(replica, "ACL", "DELUSER", "feedmux")
        assert levels(await found()) == [("redis.replicas", Level.FAILED)]
        async with aclosing(connect(url, RedisAccess("feedmux", "secret"))) as client:
            await examine_redis(client, url)  # as the doctor does before: in a cluster, it asks any node for the others
            servers[-1].pause()
            try:
                silent = await examine_replicas(client, url, timeout_s=1.0)
            finally:
                servers[-1].resume()
        assert levels(silent) == [("redis.replicas", Level.UNKNOWN)]


async def test_every_script_runs_with_the_documented_permissions(redis_factory: RedisFactory) -> None:
    """Also where there is no subscription, or a part of one."""
    server = await redis_factory()
    await add_user([server])
    async with aclosing(connect(server.url, RedisAccess("feedmux", "secret"))) as limited:
        await check_writable(limited)
        store = SubscriptionStore(limited, lease_s=30.0, timeout_s=PATIENCE_S)
        at = {"position": b"p", "cluster_time": 1, "order": b""}
        for call in (
            store.get("t", "s"),
            store.leases.open("t", "s", instance_id="i"),
            store.update("t", "s", definition=b"", etag="2"),
            store.seek("t", "s", **at),  # type: ignore[arg-type]
            store.delete("t", "s"),
        ):
            with pytest.raises(FeedmuxError) as caught:
                await call
            assert caught.value.reason is ErrorReason.SUBSCRIPTION_NOT_FOUND
        assert not await store.expire("t", "s", 0.0)
        for lost in ((), ("epoch",), ("epoch", "nonce", "owner", "lease_until_ms")):
            await create(store, "t", "s")
            if lost:
                await ask(server.port, "HDEL", "feedmux:1:{t/s}", *lost)
            stored, lease = await store.leases.open("t", "s", instance_id="i")
            await ask(server.port, "HDEL", "feedmux:1:{t/s}", "etag")
            await store.leases.restore_many([RestoreRequest(lease, stored)])
            assert (await commit(store, lease, 1)).status is CommitStatus.OK
            await store.leases.release(lease)
            await store.seek("t", "s", **at)  # type: ignore[arg-type]
            await store.update("t", "s", definition=b"", etag="2")
            assert not await store.expire("t", "s", 3600.0)
            await store.delete("t", "s")


async def test_a_missing_permission_is_reported_and_does_no_harm(redis_factory: RedisFactory) -> None:
    server = await redis_factory()
    await add_user([server])
    async with aclosing(connect(server.url, RedisAccess("feedmux", "secret"))) as limited:
        store = SubscriptionStore(limited, lease_s=30.0, timeout_s=PATIENCE_S)
        await create(store, "t", "s")
        commands = ("-@hash", "-hlen", "-@sortedset", "-set", "-pexpire", "-persist", "-time", "-info", "-@scripting")
        for missing in commands:
            await ask(server.port, "ACL", "SETUSER", "feedmux", missing)
            found = await probe(limited)
            assert (found.level, "ACL LOG" in found.advice) == (Level.FAILED, True), missing
            if missing in ("-@hash", "-hlen"):  # the subscription is not taken for something that is no hash
                for call in (store.get("t", "s"), create(store, "t", "s"), store.delete("t", "s")):
                    with pytest.raises(FeedmuxError) as caught:
                        await call
                    assert caught.value.metadata == {"redis_error": "NOPERM"}
            await add_user([server])
        assert place_of(await store.get("t", "s")) == place(0)


def tls(folder: Path) -> tuple[ssl.SSLContext, RedisAccess]:
    """What a server needs that asks for the client's certificate, and what `feedmux` needs to be accepted."""
    authority = Authority(folder)
    files = authority.sign("redis", x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.load_cert_chain(str(files.certificate), str(files.key))
    context.verify_mode = ssl.CERT_REQUIRED
    own = Path(str(files.certificate)), Path(str(files.key))
    return context, RedisAccess("feedmux", "secret", "", "", authority.path, *own)


class Fronts:
    """The Redis of the tests was built without TLS, so each server gets a port before it that speaks it."""

    def __init__(self, stack: AsyncExitStack, context: ssl.SSLContext) -> None:
        self._stack = stack
        self._context = context
        self.by_port: dict[int, Front] = {}

    async def announce(self, port: int) -> int:
        front = self.by_port[port] = await self._stack.enter_async_context(fronted(port, self._context))
        return front.port


async def test_a_cluster_with_tls(tmp_path: Path) -> None:
    context, access = tls(tmp_path)
    async with AsyncExitStack() as stack:
        fronts = Fronts(stack, context)
        nodes = await stack.enter_async_context(cluster(announce=fronts.announce))
        await add_user(nodes.servers)
        url = nodes.url.replace("redis+", "rediss+")
        await lets_in_by_certificate_alone(url, access)
        await takes_commits(url, access)
        for server in nodes.servers[:3]:
            assert fronts.by_port[server.port].tls_count


@pytest.mark.full
async def test_sentinels_with_tls(tmp_path: Path) -> None:
    context, access = tls(tmp_path)
    async with AsyncExitStack() as stack:
        fronts = Fronts(stack, context)
        nodes = await stack.enter_async_context(sentinels(tmp_path, announce=fronts.announce))
        await add_user(nodes.servers)
        url = nodes.url.replace("redis+", "rediss+")
        await lets_in_by_certificate_alone(url, access)
        await takes_commits(url, access)
        assert fronts.by_port[nodes.servers[0].port].tls_count
        assert any(fronts.by_port[port].tls_count for port in nodes.ports)
        async with aclosing(connect(url, access)) as client:
            [found] = await examine_replicas(client, url)
            assert found.level is Level.OK


async def takes_commits(url: str, access: RedisAccess) -> None:
    async with aclosing(connect(url, access)) as client:
        store = SubscriptionStore(client, lease_s=30.0)
        committer = Committer(store.leases, interval_s=0.02)
        sessions = await attached(store, committer, [f"s{number}" for number in range(COUNT)])
        async with running(committer):
            for handle, _ in sessions.values():
                submit(handle, 7)
            await until(lambda: all(recorder.commits for _, recorder in sessions.values()))


async def lets_in_by_certificate_alone(url: str, access: RedisAccess) -> None:
    async with aclosing(connect(url, access)) as client:
        assert await check_redis(client, url) == ()
        assert (await probe(client)).level is Level.OK
    async with aclosing(connect(url, RedisAccess("feedmux", "secret"))) as stranger:
        with pytest.raises(RedisUnavailable, match=r"redis\.ca_file"):
            await check_redis(stranger, url)


async def add_user(servers: Sequence[RedisServer]) -> None:
    for server in servers:
        await ask(server.port, "ACL", "SETUSER", "feedmux", "on", ">secret", *acl_rules())


def acl_rules() -> list[str]:
    """Those of docs/redis.md."""
    text = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("ACL SETUSER feedmux ")]
    return [word for word in line.split()[3:] if word != "on" and not word.startswith(">")]
