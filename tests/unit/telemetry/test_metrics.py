"""Metrics and spans: the table of metrics, what the observer records, and the bound on tenants."""

import asyncio
import inspect
import re
from collections import Counter
from typing import Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from feedmux_server.telemetry import metrics, observer, otel_observer
from feedmux_server.telemetry.labels import Labels
from feedmux_server.telemetry.metrics import METRICS, SOURCE, TENANT, Kind
from feedmux_server.telemetry.metrics_snapshot import MetricsSnapshot
from feedmux_server.telemetry.otel_observer import OtelObserver
from tests.tables import over
from tests.telemetry.metrics_page import series
from tests.virtual_time import in_virtual_time


def test_names_are_ours_or_a_conventions() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"(feedmux|rpc|process)(\.[a-z][a-z_]*)+", metric.name), metric.name
    counts = Counter(metric.name for metric in METRICS) + Counter(metric.description for metric in METRICS)
    assert set(counts.values()) == {1}
    # A name that is also a prefix of another name is a namespace.
    names = {metric.name for metric in METRICS}
    assert not [one for one in names for other in names if other.startswith(f"{one}.")]


def test_prometheus_gets_the_suffixes_of_kind_and_unit() -> None:
    for metric, name in series().items():
        assert name.endswith("_total") == (metric.kind is Kind.COUNTER), name
        assert ("_seconds" in name) == (metric.unit == "s"), name
        assert ("_bytes" in name) == (metric.unit == "By"), name
        assert not name.endswith(("_count", "_sum", "_bucket")), name
        assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets), name


def test_what_tells_of_tenants_can_be_capped() -> None:
    for metric in METRICS:
        assert metric.attributes.count(TENANT) <= 1
        assert metric.attributes.count(SOURCE) <= 1


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


@over("kind", ["Observer", "SessionObserver", "Span", "Call"])
def test_what_is_reported_is_observed(kind: str) -> None:
    silent = getattr(observer, kind)
    observing = [
        each
        for _, each in inspect.getmembers(otel_observer, inspect.isclass)
        if each is not silent and issubclass(each, silent)
    ]
    assert observing
    reports = {name: each for name, each in vars(silent).items() if inspect.isfunction(each) and name[0] != "_"}
    for each in observing:
        for name, report in reports.items():
            found = getattr(each, name)
            if kind == "Observer":
                assert found is not report, f"{each.__name__} ignores {name}"
            assert list(inspect.signature(found).parameters) == list(inspect.signature(report).parameters)


@in_virtual_time
async def test_a_session_has_a_span_for_one_message_a_second_at_most() -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracer = provider.get_tracer("test")
    observer = OtelObserver(NoOpMeterProvider().get_meter("test"), tracer, Labels(10))
    with tracer.start_as_current_span("call"):
        session = observer.session("a")
    await asyncio.sleep(1.0)
    counts = []
    for second in range(3):
        for message in range(10):
            session.sent(10 * second + message + 1, 1, 100, 0.0, None)
            await asyncio.sleep(0.1001)
        counts.append(len([each for each in exported.get_finished_spans() if each.name == "feedmux deliver"]))
    assert counts == [1, 2, 3]


@over(
    ("happened_s", "read_s", "seconds"),
    [(1_700_000_000.0, 1_700_000_001.5, 1.5), (1_700_000_001.0, 1_700_000_000.0, 0.0)],
)
def test_the_stage_read_is_from_mongodb_s_clock_to_ours(happened_s: float, read_s: float, seconds: float) -> None:
    reader = InMemoryMetricReader()
    observing = OtelObserver(MeterProvider([reader]).get_meter("test"), None, Labels(10))
    observing.batch_read("main", 3, 100, happened_s, read_s)
    data: Any = reader.get_metrics_data()
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    [point] = metric.data.data_points
    assert metric.name == metrics.STAGES.name
    assert (point.count, point.sum) == (1, seconds)
    assert point.attributes == {metrics.STAGE: "read", metrics.SOURCE: "main"}
