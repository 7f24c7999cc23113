"""The spans of a traced session."""

import asyncio

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from feedmux_server.telemetry.labels import Labels
from feedmux_server.telemetry.observing import Observing
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_session_has_a_span_for_one_message_a_second_at_most() -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracer = provider.get_tracer("test")
    observer = Observing(NoOpMeterProvider().get_meter("test"), tracer, Labels(10))
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
