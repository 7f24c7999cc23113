"""A collector that is down, or that takes connections and never answers: it blocks nothing and no data accumulates."""

import asyncio
import json
import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from pymongo.database import Database

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_embedded.ports import free_ports
from feedmux_server.telemetry.otel_setup import TelemetryOptions, start_telemetry
from tests.integration.servers import server_process, settings, until
from tests.integration.wire import LATEST, Api, feed, refused
from tests.telemetry.scrape import scrape

Fault = Literal["closed", "silent"]
MIB = 1024 * 1024
CALLS = 1_000
SPANS = 60_000


@asynccontextmanager
async def collector_that_is(fault: Fault) -> AsyncIterator[int]:
    """The port of a collector that is of no use."""
    if fault == "closed":
        yield free_ports(1)[0]
        return
    gone = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        gone.set()
        server.close()


async def call_often(api: Api, count: int) -> None:
    """Each is a span."""
    for first in range(0, count, 50):
        answers = await asyncio.gather(*(refused(api.get(f"nobody-{first}-{n}")) for n in range(50)))
        assert {answer.reason for answer in answers} == {"SUBSCRIPTION_NOT_FOUND"}


@pytest.mark.parametrize(
    ("fault", "protocol"),
    [
        ("closed", "grpc"),
        ("silent", "http/protobuf"),
        pytest.param("closed", "http/protobuf", marks=pytest.mark.full),
        pytest.param("silent", "grpc", marks=pytest.mark.full),
    ],
)
async def test_it_costs_nothing_but_what_it_is_not_sent(
    mongo: ReplicaSet,
    redis_server: RedisServer,
    database: Database[dict[str, Any]],
    tmp_path: Path,
    name: str,
    fault: Fault,
    protocol: str,
) -> None:
    configuration = {**settings(mongo.uri, redis_server.url, drain_s=1.0), "telemetry": {"shutdown_s": 1.0}}
    async with collector_that_is(fault) as port:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            # So small and frequent that a queue which grew or blocked would show.
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_BSP_MAX_QUEUE_SIZE": "200",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "100",
            "OTEL_BLRP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
            # What waited for the collector would wait longer than the test does.
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
        }
        async with server_process(configuration, tmp_path, environment) as server, server.api() as api:
            await api.create(name, feed(database.name, "c"), LATEST)
            session = await api.open(name)
            await call_often(api, CALLS)
            database["c"].insert_many([{"n": n} for n in range(20)])
            assert await session.numbers(20) == list(range(20))
            await session.ack_and_wait(20)
            page = await scrape(server.ports[3])
            assert page.value("feedmux_delivered_events_total") == 20
            session.cancel()
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: not server.process.running)
            assert server.process.returncode == 0
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    complaints = [line for line in lines if line["logger"].startswith(("opentelemetry", "urllib3"))]
    assert len([line for line in complaints if line["level"] in ("warning", "error")]) <= 12
    if fault == "closed":
        assert complaints
    assert "Traceback" not in server.log.read_text(), server.log.read_text()[-6000:]


@pytest.mark.parametrize("fault", ["closed", "silent"])
async def test_what_cannot_be_sent_is_dropped_and_not_gathered(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector_that_is(fault) as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        telemetry = start_telemetry(TelemetryOptions(shutdown_s=0.1))
        try:
            before = resident_bytes()
            for number in range(SPANS):
                # 60 MB and more, if they were retained.
                with telemetry.observer.span("work", {"number": number, "text": "x" * 500}):
                    pass
                if not number % 1_000:
                    await asyncio.sleep(0)
            assert resident_bytes() - before < 30 * MIB
        finally:
            await telemetry.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
