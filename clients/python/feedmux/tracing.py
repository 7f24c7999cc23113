"""The caller's trace for the server, as W3C trace context: where OpenTelemetry's API is installed, else not at all."""

from typing import Any

try:
    from opentelemetry import propagate
except ImportError:  # it is not needed
    _inject: Any = None
else:
    _inject = propagate.inject


def trace_context() -> tuple[tuple[str, str], ...]:
    """Metadata of a call that is part of the present span; none outside of spans."""
    if _inject is None:
        return ()
    carrier: dict[str, str] = {}
    _inject(carrier)
    return tuple(carrier.items())
