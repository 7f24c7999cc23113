"""Sends the caller's trace to the server as W3C trace context, if OpenTelemetry's API is installed."""

from typing import Any

try:
    from opentelemetry import propagate
except (ImportError, ValueError):  # it is not needed, or OTEL_PROPAGATORS names one that is not installed
    _inject: Any = None
else:
    _inject = propagate.inject


def trace_context() -> tuple[tuple[str, str], ...]:
    """Return the trace metadata of a call inside the present span; none outside of spans."""
    if _inject is None:
        return ()
    carrier: dict[str, str] = {}
    _inject(carrier)
    return tuple(carrier.items())
