"""The page of a server at work: every metric of the table, and what every query of the alerts and of the dashboard asks
for."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.core.delivery.copy_progress import CopyState
from feedmux_server.core.errors import ErrorReason
from feedmux_server.telemetry.metrics import Kind, Metric
from feedmux_server.tenants.registry import hash_key
from tests.integration.servers import KEY_A, Here, serving, settings, until
from tests.integration.wire import LATEST, at, feed
from tests.telemetry.metrics_page import series
from tests.telemetry.promql import TARGET_LABELS, asked, queries
from tests.telemetry.scrape import Scrape, scrape

KNOWN = {
    "error_type": {reason.value for reason in ErrorReason},
    "feedmux_state": {state.value for state in CopyState},
}
"""Values that are right though they do not occur here: INTERNAL is a defect of ours."""
RARE = ("feedmux.snapshot.retries", "feedmux.snapshot.remaining", "feedmux.snapshot.restarts",
        "feedmux.group.dead_letters",
        "feedmux.group.dead_letters_waiting", "feedmux.dead_letters.utilization",
        "feedmux.group.quarantined_keys")  # fmt: skip
"""What this server has no trouble with. Their names and labels are those of the table of metrics."""


@pytest_asyncio.fixture(scope="module")
async def troubled(mongo: ReplicaSet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Here]:
    """A server that has had traffic and one of each trouble, so that every series exists."""
    folder = tmp_path_factory.mktemp("dashboards")
    tenants = [{"name": "a", "api_key_hashes": [hash_key(KEY_A)], "quotas": {"sessions": 6, "events_per_s": 2_000}}]
    file = folder / "tenants.yaml"
    file.write_text(json.dumps({"tenants": tenants}))
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(RedisServer(persistence=False))
        limits = {
            "ring_events": 1_000,
            "oplog_check_interval_s": 0.2,
            "position_check_interval_s": 1,
            "history_at_risk_s": [1e9],
        }
        configuration = {
            **settings(mongo.uri, redis.url, **limits),
            "tenants_file": str(file),
        }
        here = await stack.enter_async_context(serving(configuration, key=KEY_A))
        await _trouble(here, mongo, redis)
        yield here


async def _trouble(here: Here, mongo: ReplicaSet, redis: RedisServer) -> None:
    api, database = here.api, "dashboards"
    with MongoClient[dict[str, Any]](mongo.uri) as client:
        await api.create("durable", feed(database, "c", batch_size=1), LATEST)
        await api.create("away", feed(database, "c"), LATEST)
        durable = await api.open("durable")
        paused = await api.session(feed=feed(database, "c"), credit=wire.Credit(events=1, bytes=1 << 20))
        await paused.opened()
        watch = api.watch(feed(database, "c"))
        await watch.opened()
        for _ in range(3):
            client[database]["c"].insert_many([{"n": n} for n in range(1_000)])
            await durable.take(1_000)
        await durable.ack_and_wait(3_000)
        await watch.take(3_000)
        watch.cancel()
        copying = await api.session(
            feed=feed(database, "c"),
            start=at(snapshot=feed_pb2.Snapshot()),
            credit=wire.Credit(events=9, bytes=1 << 20),
        )
        await copying.take(9)
        await api.create("group", feed(database, "c"), LATEST, group={})
        member = await api.session("group", join=True, credit=wire.Credit(events=1, bytes=1 << 20))
        await member.opened()
        await until(lambda: len(here.server.service.sessions) == 4)
        more = [api.watch(feed(database, f"more-{n}")) for n in range(2)]
        for each in more:
            await each.opened()
        assert (await api.watch(feed(database, "one too many")).end()).reason == "QUOTA_EXCEEDED"
        client.admin.command(
            {
                "configureFailPoint": "failCommand",
                "mode": {"times": 1},
                "data": {
                    "failCommands": ["getMore"],
                    "namespace": f"{database}.c",
                    "errorCode": 6,
                    "errorLabels": ["ResumableChangeStreamError"],
                },
            }
        )
        client[database]["c"].insert_one({"n": 1})
        await durable.take(1)
        await member.take(1)
        await redis.kill9()
        await durable.ack(3_001)

        async def failed() -> bool:
            page = await scrape(here.server.metrics_port)
            return page.has("feedmux_redis_errors_total") and page.has("feedmux_stream_resumes_total")

        await until(failed)
        await redis.start()
        await durable.until(lambda: any(each.delivery_sequence >= 3_001 for each in durable.committed))

        async def stored() -> bool:
            return (await scrape(here.server.metrics_port)).has("feedmux_history_stored_at_risk")

        await until(stored)


async def test_every_metric_of_the_table_comes_from_somewhere(troubled: Here) -> None:
    """What never has a value in a server that works would be a dead line of the table; faults have their tests."""
    wanted = {
        f"{prometheus}_count" if metric.kind is Kind.HISTOGRAM else prometheus
        for metric, prometheus in series().items()
        if metric.name not in (*RARE, "feedmux.source.forks")
    }
    there: dict[str, set[str]] = {}

    async def complete() -> bool:
        """Some, such as the probes of the event loop, come in intervals."""
        there.update((await scrape(troubled.server.metrics_port)).labels())
        return wanted <= there.keys()

    try:
        await until(complete)
    except TimeoutError:
        raise AssertionError(f"not there: {wanted - there.keys()}") from None
    known = set(series().values()) | {"target_info"}
    assert not {name for name in there if name not in known and name.rpartition("_")[0] not in known}


async def test_every_query_asks_for_what_there_is(troubled: Here) -> None:
    page = await scrape(troubled.server.metrics_port)
    rare = {name: {label.replace(".", "_") for label in metric.attributes} for metric, name in _rare().items()}
    there = page.labels() | rare
    wrong = []
    for query in queries():
        needs = asked(query.expression)
        known: set[str] = set(TARGET_LABELS)
        for name, matchers in needs.series.items():
            if name not in there:
                wrong.append(f"{query.where}: there is no series {name}")
                continue
            known |= there[name]
            for label, patterns in matchers.items():
                if label in TARGET_LABELS:
                    continue
                if label not in there[name]:
                    wrong.append(f"{query.where}: {name} has no label {label}")
                elif name not in rare and not _some_value_fits(page, name, label, patterns):
                    wrong.append(f"{query.where}: no {label} of {name} is like {patterns}")
        wrong += [f"{query.where}: no label {label}" for label in needs.labels - known]
    assert not wrong, "\n".join(wrong)


def _rare() -> dict[Metric, str]:
    return {metric: name for metric, name in series().items() if metric.name in RARE}


def _some_value_fits(page: Scrape, name: str, label: str, patterns: list[str]) -> bool:
    values = {labels.get(label, "") for labels, _ in page.samples(name)} | KNOWN.get(label, set())
    # A negative matcher is fulfilled by others; that its pattern is of this label is what can be checked.
    return any(re.fullmatch(pattern.replace("\\\\", "\\"), value) for pattern in patterns for value in values)
