"""The metrics page of a server at work: its numbers match the work that was done."""

import errno
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.app import CannotStart, running
from feedmux_server.config.load import make_config
from feedmux_server.telemetry import otel_setup
from tests.documents import Documents
from tests.integration.servers import Here, serving, settings, until
from tests.integration.wire import LATEST, PATIENCE_S, feed
from tests.telemetry.scrape import Scrape, scrape


@pytest_asyncio.fixture
async def metered(mongo: ReplicaSet, redis_server: RedisServer) -> AsyncIterator[Here]:
    """A server that has done nothing yet."""
    configuration = settings(mongo.uri, redis_server.url, oplog_check_interval_s=0.2, position_check_interval_s=1.0)
    del configuration["sources"]["other"]
    async with serving(configuration) as here:
        yield here


async def seen(here: Here) -> Scrape:
    return await scrape(here.server.metrics_port)


async def test_events_on_their_way(metered: Here, database: Documents, name: str) -> None:
    api, orders = metered.api, feed(database.name, "c")
    await api.create(name, orders, LATEST)
    durable = await api.open(name)
    live = api.watch(orders)
    await live.opened()
    documents = [{"n": n, "text": "x" * 100} for n in range(200)]
    database["c"].insert_many(documents)
    events = await durable.take(200)
    await live.take(200)
    await durable.ack_and_wait(200)
    size = sum(len(event.data) for event in events)
    page = await seen(metered)
    # Read once, sent to each.
    assert page.value("feedmux_source_events_total", source="main") == 200
    assert page.value("feedmux_source_io_bytes_total", source="main") == size
    assert page.value("feedmux_delivered_events_total", tenant="default") == 400
    assert page.value("feedmux_delivered_io_bytes_total") == 2 * size
    assert page.value("feedmux_subscriber_active", tenant="default", state="live") == 2
    assert page.value("feedmux_stream_active") == 1
    assert page.value("feedmux_stream_cursors") == 1
    assert page.value("feedmux_ring_events", source="main") == 200
    assert page.value("feedmux_ring_usage_bytes") >= size
    assert page.value("feedmux_memory_usage_bytes", part="rings") == page.value("feedmux_ring_usage_bytes")
    assert page.value("feedmux_stream_reads_total") > 0
    assert page.value("feedmux_subscriber_unacked") == 0
    assert page.value("feedmux_commit_results_total", outcome="ok") > 0
    assert page.value("feedmux_commit_duration_seconds_count") > 0
    assert page.value("feedmux_redis_available") == page.value("feedmux_source_available") == 1
    assert page.value("feedmux_ready") == 1
    assert page.value("feedmux_stage_duration_seconds_count", stage="read", source="main") > 0
    await durable.close()
    live.cancel()
    await until(lambda: not metered.server.service.sessions)
    after = await seen(metered)
    assert after.value("feedmux_subscriber_active") == 0
    assert after.value("feedmux_session_opened_total") == 2
    assert after.value("feedmux_session_ended_total", outcome="OK") == 1
    assert after.value("feedmux_session_ended_total", outcome="CANCELLED") == 1
    # Counters keep their values.
    assert after.value("feedmux_delivered_events_total") == 400
    assert (
        after.value(
            "rpc_server_call_duration_seconds_count",
            rpc_method="feedmux.v1.ChangeFeed/Subscribe",
            rpc_response_status_code="OK",
        )
        == 1
    )


async def test_stages_of_messages_are_measured(metered: Here, database: Documents, name: str) -> None:
    """A random share is, so there have to be many messages."""
    api = metered.api
    await api.create(name, feed(database.name, "c", batch_size=1), LATEST)
    session = await api.open(name)
    database["c"].insert_many([{"n": n} for n in range(1000)])
    for first in range(0, 1000, 100):
        await session.take(100)
        await session.ack(first + 100)
    await session.ack_and_wait(1000)
    page = await seen(metered)
    measured = page.value("feedmux_stage_duration_seconds_count", stage="sent", tenant="default")
    assert 10 < measured < 200
    assert 0 < page.value("feedmux_stage_duration_seconds_count", stage="acked", tenant="default") <= measured
    await session.close()


async def test_lag_and_headroom_of_one_who_does_not_read(metered: Here, database: Documents, name: str) -> None:
    api = metered.api
    await api.create(name, feed(database.name, "c"), LATEST)
    session = await api.open(name, credit=wire.Credit(events=2, bytes=1 << 20))
    database["c"].insert_many([{"n": n} for n in range(2)])
    await session.take(2)

    async def lagging() -> bool:
        database["c"].insert_one({})  # until one is of another second: cluster time counts seconds
        page = await seen(metered)
        return page.value("feedmux_subscriber_lag_seconds", tenant="default") >= 1

    await until(lagging)
    page = await seen(metered)
    assert page.value("feedmux_subscriber_unacked") == 2
    assert page.has("feedmux_oplog_headroom_seconds", source="main", tenant="default")
    assert page.has("feedmux_oplog_window_seconds", source="main")
    session.cancel()


async def test_the_page_answers_while_the_event_loop_does_not(metered: Here, caplog: pytest.LogCaptureFixture) -> None:
    """The last values stand, and the page says how old they are."""
    before = await seen(metered)
    url = f"http://127.0.0.1:{metered.server.metrics_port}/metrics"
    with ThreadPoolExecutor() as threads:
        reading = threads.submit(lambda: urllib.request.urlopen(url, timeout=PATIENCE_S).read())
        page = reading.result(PATIENCE_S)  # The event loop hangs until the page has come.
        [age_s] = [float(line.split()[1]) for line in page.splitlines() if line.startswith(b"feedmux_telemetry_age")]
        assert age_s >= otel_setup._SURVEY_TIMEOUT_S
    assert [each.message for each in caplog.records if "metrics repeat older values" in each.message]
    assert page.count(b"feedmux_") >= before.text.count("feedmux_") // 2


@pytest.mark.parametrize("address", ["9117", "localhost:", "127.0.0.1:http", ":9117"])
async def test_what_is_no_address_is_refused(mongo: ReplicaSet, redis_server: RedisServer, address: str) -> None:
    configuration = settings(mongo.uri, redis_server.url)
    configuration["listen"]["metrics"] = address
    with pytest.raises(CannotStart, match=r"listen\.metrics .* is no address"):
        async with running(make_config(configuration), insecure_no_auth=True):
            pass


async def test_without_a_page_nothing_listens(
    mongo: ReplicaSet, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = settings(mongo.uri, redis_server.url)
    configuration["listen"]["metrics"] = ""
    async with serving(configuration) as here:
        assert here.server.metrics_port is None
        assert here.server.service.manager.observer.__class__.__name__ == "Observer"
    configuration["listen"]["metrics"] = "127.0.0.1:0"
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    async with serving(configuration) as here:
        assert here.server.metrics_port is None


async def test_every_tenant_that_may_be_named_is_named() -> None:
    """Whatever the SDK's own limit of series."""
    count = 3_000
    telemetry = otel_setup.start_telemetry(otel_setup.TelemetryOptions("127.0.0.1:0", tenants_max=count))
    for number in range(count + 1):
        telemetry.observer.session(f"t{number}")
    page = await scrape(telemetry.port)
    await telemetry.close()
    opened = {labels["feedmux_tenant"]: value for labels, value in page.samples("feedmux_session_opened_total")}
    assert opened == {"other": 1, **{f"t{number}": 1 for number in range(count)}}


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_the_page_is_on_all_interfaces_of_either_family(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without opening a port to other machines: which addresses are tried, where IPv6 is there, and where it is not."""
    tried: list[str] = []
    problems: list[int] = []

    def listen(_: int, address: str, __: Any) -> Any:
        tried.append(address)
        if address == "::" and problems and (problem := problems.pop()):
            raise OSError(problem, "no")

    monkeypatch.setattr(otel_setup, "start_http_server", listen)
    for problem in (0, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
        problems.append(problem)
        otel_setup._serve_page(host, 1, CollectorRegistry())
    assert tried == ["::", "::", "0.0.0.0", "::", "0.0.0.0"]
    problems.append(errno.EADDRINUSE)
    with pytest.raises(OSError, match="no"):
        otel_setup._serve_page(host, 1, CollectorRegistry())


def test_the_page_of_one_address_is_on_that_address() -> None:
    server, thread = otel_setup._serve_page("::1", 0, CollectorRegistry())
    try:
        assert server.server_address[0] == "::1"
    finally:
        otel_setup._end_page(server, thread)
