"""The operator's port: the usage of tenants."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from feedmux.v1 import operator_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from tests.documents import Documents
from tests.integration.servers import OPERATOR_KEY, until
from tests.integration.tenancy import Tenancy, configuration, entry, tenancy
from tests.integration.wire import Api, feed


@pytest_asyncio.fixture
async def site(mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path, name: str) -> AsyncIterator[Tenancy]:
    """Tenants with names of their own, for their subscriptions stay in the shared Redis."""
    entries = (entry(f"{name}-a", "key-a-canary"), entry(f"{name}-b", "key-b-canary"))
    async with tenancy(configuration(mongo, redis_server, tmp_path, *entries), "key-a-canary") as made:
        yield made


@pytest_asyncio.fixture
async def operator(site: Tenancy) -> AsyncIterator[Api]:
    async with site.here.api.with_key(OPERATOR_KEY) as made:
        yield made


async def usage(operator: Api, tenant: str = "") -> dict[str, operator_pb2.TenantUsage]:
    request = operator_pb2.ListTenantsRequest(tenant=tenant)
    answer = await operator.operator.ListTenants(request, metadata=operator.metadata)
    return {each.tenant.rpartition("-")[2]: each for each in answer.tenants}


async def test_usage(site: Tenancy, operator: Api, database: Documents, name: str) -> None:
    api = site.here.api
    assert set(await usage(operator)) == {"a", "b"}
    await api.create("one", feed(database.name, "c"))
    await api.create("two", feed(database.name, "c"))
    durable = await api.open("one")
    async with api.with_key("key-b-canary") as other:
        shared = await other.open(feed=feed(database.name, "c"))
        alone = await other.open(feed=feed(database.name, "other"))
        database.c.insert_many({"n": n} for n in range(10))
        database.other.insert_many({"n": n} for n in range(20))
        await durable.take(10)
        await shared.take(10)
        await alone.take(20)
        await until(lambda: _sent(operator, 10, 30))
        used = await usage(operator)
        a, b = used["a"], used["b"]
        assert (a.open_sessions, b.open_sessions) == (1, 2)
        assert (a.subscriptions, b.subscriptions) == (2, 0)
        assert (a.shared_streams, b.shared_streams) == (1, 2)
        assert (a.exclusive_streams, b.exclusive_streams) == (0, 1)
        # Ten events were read once for both tenants, twenty for `b` alone.
        assert a.upstream_events == pytest.approx(5)
        assert b.upstream_events == pytest.approx(25)
        assert a.upstream_share == pytest.approx(a.upstream_bytes / (a.upstream_bytes + b.upstream_bytes))
        assert 0.1 < a.upstream_share < 0.25
        assert a.configured
        shared.cancel()
        await until(lambda: _streams(operator, "b", 1))
        database.c.insert_many({"n": n} for n in range(10))
        await durable.take(10)
        assert (await usage(operator))["a"].upstream_events == pytest.approx(15)
        alone.cancel()
    assert set(await usage(operator, f"{name}-a")) == {"a"}
    assert not await usage(operator, "nobody")
    site.write(entry(f"{name}-a", "key-a-canary"))
    await until(lambda: _gone(operator))
    durable.cancel()


async def _sent(operator: Api, a: int, b: int) -> bool:
    used = await usage(operator)
    return (used["a"].events_sent, used["b"].events_sent) == (a, b) and used["a"].bytes_sent > 0


async def _streams(operator: Api, tenant: str, count: int) -> bool:
    return (await usage(operator))[tenant].open_sessions == count


async def _gone(operator: Api) -> bool:
    return not (await usage(operator))["b"].configured
