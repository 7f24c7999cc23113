"""The values that a snapshot of the metrics gets from the server's state."""

import asyncio
from types import SimpleNamespace
from typing import cast

from feedmux_server.core.delivery.copy_progress import CopyState, CopyStatus
from feedmux_server.jobs.metrics_collector import MetricsCollector, _copy
from feedmux_server.jobs.monitor_results import MonitorResults
from feedmux_server.sessions.session import Session
from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.labels import Labels
from feedmux_server.telemetry.metrics import Metric
from feedmux_server.telemetry.metrics_snapshot import MetricsSnapshot
from tests.unit.rpc.service_support import Served, served
from tests.unit.rpc.test_join import change, group_served, joined, until
from tests.virtual_time import in_virtual_time


async def collected(there: Served) -> MetricsSnapshot:
    service = there.service
    collector = MetricsCollector(
        service.manager,
        service.sessions,
        MonitorResults.of_sources(["main"]),
        service.ranges,
        service.committer,
        service.groups,
        100,
        lambda: True,
        service.letters,
    )
    snapshot = MetricsSnapshot(Labels(10))
    await collector(snapshot)
    return snapshot


def values(snapshot: MetricsSnapshot, metric: Metric) -> list[float]:
    return [value for value, _ in snapshot.of(metric)]


@in_virtual_time
async def test_copies_are_shown_by_state_and_the_longest_by_its_time_left() -> None:
    async with served() as there:
        snapshot = await collected(there)
        for state, left_s in ((CopyState.RUNNING, 5.0), (CopyState.STALLED, 9.0), (CopyState.RUNNING, None)):
            status = CopyStatus(True, 1, "db.c", remaining_s=left_s)
            _copy(snapshot, cast(Session, SimpleNamespace(copy_state=state, copy_status=status)), "main", "a")
        _copy(snapshot, cast(Session, SimpleNamespace(copy_state=None, copy_status=None)), "main", "a")
        assert sorted(values(snapshot, metrics.SNAPSHOTS)) == [1, 2]
        assert values(snapshot, metrics.SNAPSHOT_REMAINING) == [9.0]


@in_virtual_time
async def test_a_group_shows_what_is_not_settled_and_what_has_failed() -> None:
    async with group_served() as there:
        member = await joined(there)
        change(there, "a", "b", "a")
        await member.has(3)
        member.fail(1 + member.events.index("a"), retry_after={"seconds": 1000})
        (group,) = there.service.groups
        await until(lambda: group.ledger.retries.held)
        await asyncio.sleep(100.0)
        snapshot = await collected(there)
        assert values(snapshot, metrics.GROUP_MEMBERS) == [1]
        assert values(snapshot, metrics.GROUP_UNSETTLED) == [3]
        assert values(snapshot, metrics.GROUP_HELD_KEYS) == [1]
        assert values(snapshot, metrics.GROUP_REDELIVERED) == [1]
        (oldest_s,) = values(snapshot, metrics.GROUP_OLDEST)
        assert 100 <= oldest_s < 110
        await member.close()
        snapshot = await collected(there)
        assert values(snapshot, metrics.GROUP_MEMBERS) == []
        assert values(snapshot, metrics.GROUP_REDELIVERED) == [1], "a counter does not go back when the group ends"
