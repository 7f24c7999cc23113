"""Values by attributes; tenants beyond the bound are counted as one."""

from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.labels import Labels
from feedmux_server.telemetry.metrics_snapshot import MetricsSnapshot


def values(snapshot: MetricsSnapshot, metric: metrics.Metric) -> dict[tuple[str, ...], float]:
    return {tuple(attributes.values()): value for value, attributes in snapshot.of(metric)}


def test_tenants_beyond_the_bound_are_other_and_stay_so() -> None:
    tenants = Labels(2)
    first, second = MetricsSnapshot(tenants), MetricsSnapshot(tenants)
    for snapshot in (first, second):
        for tenant, count in (("a", 1), ("b", 2), ("c", 4), ("d", 8)):
            snapshot.add(metrics.DELIVERED, count, tenant)
            snapshot.least(metrics.HEADROOM, count, "main", tenant)
            snapshot.most(metrics.LAG, count, tenant)
    second.add(metrics.DELIVERED, 100, "a")
    assert values(first, metrics.DELIVERED) == {("a",): 1, ("b",): 2, ("other",): 12}
    assert values(first, metrics.HEADROOM) == {("main", "a"): 1, ("main", "b"): 2, ("main", "other"): 4}
    assert values(first, metrics.LAG) == {("a",): 1, ("b",): 2, ("other",): 8}
    assert values(second, metrics.DELIVERED) == {("a",): 101, ("b",): 2, ("other",): 12}


def test_a_bound_of_none_names_nobody() -> None:
    snapshot = MetricsSnapshot(Labels(0))
    snapshot.add(metrics.DELIVERED, 3, "a")
    assert values(snapshot, metrics.DELIVERED) == {("other",): 3}


def test_a_copy_does_not_change_with_its_origin() -> None:
    counted, snapshot = MetricsSnapshot(Labels(5)), MetricsSnapshot(Labels(5))
    counted.add(metrics.READS, 1, "main")
    snapshot.take(counted)
    counted.add(metrics.READS, 1, "main")
    assert values(snapshot, metrics.READS) == {("main",): 1}
