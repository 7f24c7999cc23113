"""Traces, metrics and logs as a collector gets them: over the wire, from a server at work."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import trace

from feedmux_embedded import RedisServer, ReplicaSet
from tests.documents import Documents
from tests.integration.servers import Here, serving, settings, until
from tests.integration.wire import LATEST, PATIENCE_S, feed
from tests.telemetry.collector import Collector, collecting, plain

SUBSCRIBE = "feedmux.v1.ChangeFeed/Subscribe"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
QUICKLY = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BLRP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "200"}


@asynccontextmanager
async def sending(
    collector: Collector,
    mongo: ReplicaSet,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    **environment: str,
) -> AsyncIterator[Here]:
    """A server that sends to a collector. Once it has ended, the collector has all that it had to send."""
    for name, value in {**QUICKLY, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **environment}.items():
        monkeypatch.setenv(name, value)
    configuration = {**settings(mongo.uri, redis_server.url), "telemetry": {"shutdown_s": PATIENCE_S}}
    async with serving(configuration) as here:
        yield here


def traceparent(api: Any) -> None:
    """From now on the api's calls are part of a trace."""
    api.metadata = (*api.metadata, ("traceparent", PARENT))


async def test_a_trace_goes_from_the_client_to_mongodb_and_back(
    mongo: ReplicaSet, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, database: Documents, name: str
) -> None:
    async with collecting() as collector, sending(collector, mongo, redis_server, monkeypatch) as here:
        api = here.api
        traceparent(api)
        await api.create(name, feed(database.name, "c"), LATEST)
        session = await api.open(name)
        database["c"].insert_many([{"n": n} for n in range(10)])
        await session.take(10)
        await session.ack_and_wait(10)
        await session.close()
        await until(lambda: collector.named(SUBSCRIBE) and collector.named("feedmux stream open"))
        [call] = collector.named(SUBSCRIBE)
        assert (call.trace_id.hex(), call.parent_span_id.hex()) == (PARENT[3:35], PARENT[36:52])
        assert plain(call.attributes) == {
            "rpc.system.name": "grpc",
            "rpc.method": SUBSCRIBE,
            "rpc.response.status_code": "OK",
        }
        assert call.kind == call.SPAN_KIND_SERVER
        # The stream outlives the call that asked for it: a trace of its own, linked.
        [opened] = collector.named("feedmux stream open", feedmux_source="main")
        assert opened.trace_id != call.trace_id
        assert not opened.parent_span_id
        assert [link.span_id for link in opened.links] == [call.span_id]
        [asked] = collector.named(f"aggregate {database.name}.c")
        assert asked.parent_span_id == opened.span_id
        assert asked.kind == asked.SPAN_KIND_CLIENT
        assert plain(asked.attributes)["db.system.name"] == "mongodb"
        # Call and messages are linked to the stream that has read for them.
        assert [link.span_id for link in call.links] == [opened.span_id]
        await until(lambda: collector.named("feedmux deliver"))
        delivered = collector.named("feedmux deliver")[0]
        assert delivered.parent_span_id == call.span_id
        assert [link.span_id for link in delivered.links] == [opened.span_id]
        assert plain(delivered.attributes)["messaging.batch.message_count"] >= 1
        # And what was acknowledged went to Redis.
        await until(lambda: collector.named("feedmux commit"))
        commit = collector.named("feedmux commit")[0]
        assert any(each.parent_span_id == commit.span_id for each in collector.named("redis pipeline"))
        text = "".join(str(span) for span in collector.spans)
        assert "fullDocument" not in text


async def test_nothing_of_pipelines_and_documents_is_exported(
    mongo: ReplicaSet, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, database: Documents, name: str
) -> None:
    """MongoDB quotes both in its errors, and the errors of calls and streams stand in spans and logs."""
    asked = {
        "refused": '[{"$set": {"x": {"$nope": "canary-1"}}}]',
        "constant": '[{"$set": {"x": {"$toInt": "canary-2"}}}]',
        "failing": '[{"$set": {"x": {"$toInt": {"$concat": ["$fullDocument.text", "canary-3"]}}}}]',
        "token": '[{"$set": {"_id": "canary-4"}}]',
        "stage": '[{"$match": {"$where": "canary-5"}}]',
    }
    logging.getLogger("feedmux_server").setLevel(logging.DEBUG)
    async with collecting() as collector:
        async with sending(collector, mongo, redis_server, monkeypatch) as here:
            traceparent(here.api)
            told = []
            for number, (what, pipeline) in enumerate(asked.items()):
                one = feed(database.name, what, pipeline)
                await here.api.explain(feed=one, start=LATEST)
                watch = here.api.watch(one)
                if what in ("failing", "token"):
                    await watch.opened()
                    database[what].insert_one({"_id": f"canary-{number}", "text": "canary-6"})
                told.append((await watch.end()).message)
            assert any("canary-3" in each for each in told)  # the caller hears it
        streams = collector.named("feedmux stream open")
        assert len(streams) >= 4
        assert len(collector.named("feedmux.v1.ChangeFeed/Watch")) == 5
        assert collector.metrics
        assert collector.logs
        assert any(each.status.code == each.status.STATUS_CODE_ERROR for each in streams)
        for each in (*collector.spans, *collector.logs, *collector.metrics.values()):
            assert "canary" not in str(each)


async def test_metrics_logs_and_the_resource(
    mongo: ReplicaSet, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, database: Documents
) -> None:
    environment = {"OTEL_SERVICE_NAME": "feeds", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test,team=a"}
    logger = logging.getLogger("feedmux_server.test")
    logging.getLogger("feedmux_server").setLevel(logging.INFO)
    async with collecting() as collector, sending(collector, mongo, redis_server, monkeypatch, **environment) as here:
        watch = here.api.watch(feed(database.name, "c"))
        await watch.opened()
        database["c"].insert_many([{"n": n} for n in range(5)])
        await watch.take(5)
        with here.server.service.manager.observer.span("in a span") as span:
            logging.getLogger("opentelemetry.exporter").error("about itself")
            logger.info("with a trace", extra={"tenant": "a", "secret": "canary"})
        await until(lambda: any(record.body.string_value == "with a trace" for record in collector.logs))
        [record] = [each for each in collector.logs if each.body.string_value == "with a trace"]
        assert plain(record.attributes) == {"feedmux.tenant": "a"}
        assert record.severity_text == "INFO"
        assert record.span_id.hex() == trace.format_span_id(span.trace.span_id)  # type: ignore[attr-defined]
        assert not [each for each in collector.logs if each.body.string_value == "about itself"]

        def delivered() -> bool:
            metric = collector.metrics.get("feedmux.delivered.events")
            return metric is not None and [each.as_int for each in metric.sum.data_points] == [5]

        await until(delivered)
        assert collector.metrics["feedmux.delivered.events"].sum.is_monotonic
        await until(lambda: "feedmux.event_loop.lag" in collector.metrics)
        assert collector.metrics["feedmux.event_loop.lag"].unit == "s"
        for resource in collector.resources:
            assert resource["service.name"] == "feeds"
            assert resource["team"] == "a"
            assert resource["service.version"]
        watch.cancel()
