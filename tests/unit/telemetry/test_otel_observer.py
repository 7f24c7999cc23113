"""What the observer records, as it appears in metrics and spans."""

import asyncio
from typing import Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from feedmux_server.telemetry import metrics
from feedmux_server.telemetry.labels import Labels
from feedmux_server.telemetry.otel_observer import OtelObserver
from tests.tables import over
from tests.virtual_time import in_virtual_time


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
