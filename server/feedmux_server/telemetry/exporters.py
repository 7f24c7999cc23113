"""Chooses the exporters by OpenTelemetry's standard variables.

OTEL_{TRACES,METRICS,LOGS}_EXPORTER names them. If it is unset, a signal with an endpoint uses OTLP, and other signals
use no exporter: a server without configuration calls no collector. The exporters, processors, sampler and
resource read their own variables (OTEL_EXPORTER_OTLP_*, OTEL_BSP_*, OTEL_TRACES_SAMPLER …) in the SDK; only the choice
of a protocol is made here, because the SDK makes it in private functions that set up global state.
"""

import os
from importlib.metadata import entry_points
from typing import Any, Final, Literal

Signal = Literal["traces", "metrics", "logs"]
_BY_PROTOCOL: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_OURS: Final = "prometheus"
"""The exporter of `listen.metrics`, which is configured separately."""


class TelemetryMisconfigured(Exception):
    """A standard variable cannot be used; the message names it."""


def disabled() -> bool:
    """Whether OTEL_SDK_DISABLED turns off all telemetry."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def exporters(signal: Signal) -> list[Any]:
    """Make the exporters of a signal. Raises TelemetryMisconfigured."""
    return [_load(signal, name)() for name in _names(signal)]


def _names(signal: Signal) -> list[str]:
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    chosen = os.environ.get(variable, "").strip()
    if not chosen:
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
        chosen = "otlp" if any(os.environ.get(each, "").strip() for each in endpoints) else "none"
    names = [each.strip() for each in chosen.split(",")]
    return [_otlp(signal) if each == "otlp" else each for each in names if each not in ("", "none", _OURS)]


def _otlp(signal: Signal) -> str:
    own, common = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = (os.environ.get(own) or os.environ.get(common) or "grpc").strip()
    try:
        return _BY_PROTOCOL[protocol]
    except KeyError:
        raise TelemetryMisconfigured(f"{common} {protocol!r} is not known: grpc or http/protobuf") from None


def _load(signal: Signal, name: str) -> Any:
    found = list(entry_points(group=f"opentelemetry_{signal}_exporter", name=name))
    if not found:
        known = sorted(
            {each.name for each in entry_points(group=f"opentelemetry_{signal}_exporter")} | {"otlp", "none"}
        )
        raise TelemetryMisconfigured(
            f"OTEL_{signal.upper()}_EXPORTER: there is no exporter {name!r} here: {', '.join(known)}"
        )
    return found[0].load()
