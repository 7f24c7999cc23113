"""The caller's trace goes with every call where OpenTelemetry is installed, and nothing is missing where it is not."""

import subprocess
import sys

import pytest

from feedmux.target import Target


def test_a_call_within_a_span_names_it() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    target = Target("localhost:1", token="a-token")
    outside = dict(target.metadata())
    with sdk.TracerProvider(shutdown_on_exit=False).get_tracer("test").start_as_current_span("work") as span:
        inside = dict(target.metadata("main/shop"))
    here = span.get_span_context()
    trace_id, span_id = trace.format_trace_id(here.trace_id), trace.format_span_id(here.span_id)
    assert set(outside) == {"authorization"}
    assert inside["traceparent"].startswith(f"00-{trace_id}-{span_id}-")
    assert inside["x-feedmux-route"] == "main/shop"


def test_opentelemetry_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import feedmux; from feedmux.target import Target\n"
        "assert Target('localhost:1', token='t').metadata() == (('authorization', 'Bearer t'),)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
