"""API keys, and a tenants file that changes while streams are open."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.rpc import live_sessions, read_range
from feedmux_server.sessions.outbox import Outbox
from tests.documents import Documents
from tests.integration.servers import until
from tests.integration.tenancy import Tenancy, configuration, entry, tenancy
from tests.integration.wire import LATEST, Refused, at, feed, refused
from tests.tables import over

UNAUTHENTICATED = ("UNAUTHENTICATED", "UNAUTHENTICATED")
A, B = entry("a", "key-a-canary", "second-a-canary"), entry("b", "key-b-canary")


@pytest_asyncio.fixture
async def site(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Tenancy]:
    """A server whose client is `a`."""
    async with tenancy(configuration(mongo, redis_server, tmp_path, A, B), "key-a-canary") as made:
        yield made


def code(outcome: Refused) -> tuple[str, str]:
    return outcome.code, outcome.reason


async def test_keys_come_and_go_with_the_file(site: Tenancy) -> None:
    assert await site.accepts("second-a-canary")
    assert await site.refuses("key-c-canary")
    site.write(entry("a", "second-a-canary"), entry("c", "key-c-canary"))
    await until(lambda: site.accepts("key-c-canary"))
    assert await site.accepts("second-a-canary")
    for gone in ("key-a-canary", "key-b-canary"):
        assert await site.refuses(gone)


@over("text", ["", "tenants: []", "{", 'tenants: [{"name": "c"}, {"name": "c"}]', "\xff", None])
async def test_a_bad_file_leaves_the_old_tenants(
    site: Tenancy, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    def complaints() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]

    caplog.clear()
    if text is None:
        site.path.unlink()
    else:
        site.path.write_bytes(text.encode("latin-1"))
    await until(complaints)
    assert await site.accepts("key-a-canary")
    assert len(complaints()) == 1
    assert str(site.path) in complaints()[0]
    site.write(A, entry("c", "key-c-canary"))
    await until(lambda: site.accepts("key-c-canary"))
    assert len(complaints()) == 1


async def test_a_file_behind_the_links_of_kubernetes(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path
) -> None:
    """`tenants.yaml -> ..data/tenants.yaml`, `..data -> ..1`: an update replaces the link `..data`."""
    configured = configuration(mongo, redis_server, tmp_path, A)
    text = Path(configured["tenants_file"]).read_text()
    for folder, content in (("..1", text), ("..2", text.replace('"a"', '"c"'))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tenants.yaml").write_text(content)
    (tmp_path / "..data").symlink_to("..1")
    mounted = tmp_path / "mounted.yaml"
    mounted.symlink_to("..data/tenants.yaml")
    async with tenancy({**configured, "tenants_file": str(mounted)}, "key-a-canary") as site:
        registry = site.here.server.service.admission.auth.registry
        assert registry is not None
        assert list(registry.tenants) == ["a"]
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").replace(tmp_path / "..data")
        await until(lambda: list(registry.tenants) == ["c"])


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([entry("a", "second-a-canary"), B], id="key removed"),
        pytest.param([B], id="tenant removed"),
        pytest.param([entry("a", "second-a-canary"), entry("b", "key-b-canary", "key-a-canary")], id="key moved"),
        pytest.param([entry("a", "key-a-canary", expires_s=1.0), B], id="key expired"),
    ],
)
async def test_streams_end_with_their_credential(
    site: Tenancy, database: Documents, name: str, after: list[dict[str, Any]]
) -> None:
    api, wanted = site.here.api, feed(database.name, "c")
    await api.create(name, wanted)
    durable = await api.open(name)
    inline = await api.open(feed=wanted)
    watch = api.watch(wanted)
    await watch.opened()
    async with api.with_key("key-b-canary") as other:
        unaffected = await other.open(feed=wanted)
        database.c.insert_one({"n": 1})
        assert await durable.numbers(1) == await unaffected.numbers(1) == [1]
        site.write(*after)
        for stream in (durable, inline, watch):
            outcome = await stream.end()
            assert code(outcome) == UNAUTHENTICATED
            assert outcome.message == (await site.outcome("wrong")).message
        database.c.insert_one({"n": 2})
        assert await unaffected.numbers(1) == [2]
        unaffected.cancel()


async def test_a_client_that_does_not_read_is_cut_off(
    site: Tenancy, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_sessions, "UNSENT_S", 0.5)
    stream = await site.here.api.open(feed=feed(database.name, "c"), format=2)
    text = "x" * 900_000
    for _ in range(40):
        database.c.insert_one({"text": text})
    (live,) = site.here.server.service.sessions
    before = -1

    def stuck() -> bool:
        nonlocal before
        sent, before = before, live.session.subscriber.events_sent
        return 0 < sent == before < 40

    await until(stuck, every_s=1.0, timeout_s=60)
    site.write(B)
    await site.until_live(0)
    assert code(await stream.end()) == UNAUTHENTICATED


async def test_a_range_ends_with_its_credential_also_while_it_waits_for_room(
    site: Tenancy, database: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = feed(database.name, "c")
    after = (await site.here.api.resolve(wanted, LATEST)).position
    database.c.insert_one({"n": 1})
    plan = await site.here.api.plan(feed=wanted, after=after)
    monkeypatch.setattr(read_range, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(Outbox, "fits", lambda *_: False)
    reading = site.here.api.read_range(feed=wanted, after=plan.after, until=plan.end)
    ending = asyncio.create_task(reading.end())
    await until(lambda: site.here.server.service.manager.memory.unsent._waiting)
    site.write(B)
    assert code(await ending) == UNAUTHENTICATED
    assert reading.received == 0


async def test_the_lease_of_a_revoked_session_is_free_at_once(site: Tenancy, database: Documents, name: str) -> None:
    await site.here.api.create(name, feed(database.name))
    first = await site.here.api.open(name)
    site.write(entry("a", "second-a-canary"))
    assert code(await first.end()) == UNAUTHENTICATED
    async with site.here.api.with_key("second-a-canary") as api:
        (await api.open(name)).cancel()


async def test_nothing_of_another_tenant_s(site: Tenancy, database: Documents, name: str) -> None:
    """A position, a subscription's name and a session belong to one tenant."""
    wanted = feed(database.name, "c")
    made = await site.here.api.create(name, wanted)
    held = await site.here.api.open(name, instance_id="one")
    async with site.here.api.with_key("key-b-canary") as other:
        start = at(position=made.position)
        assert code(await refused(other.watch(wanted, start).opened())) == ("INVALID_ARGUMENT", "POSITION_FOREIGN")
        for call in (
            other.get(name),
            other.delete(name),
            (await other.session(name, takeover=True)).opened(),
            (await other.session(name, instance_id="one")).opened(),
        ):
            assert code(await refused(call)) == ("NOT_FOUND", "SUBSCRIPTION_NOT_FOUND")
        assert not (await other.page()).subscriptions
        await other.create(name, feed(database.name, "other"))
        (await other.open(name)).cancel()
    database.c.insert_one({"n": 1})
    assert await held.numbers(1) == [1]
    held.cancel()
