"""Write docs/metrics.md from the table in the code: `python -m tests.telemetry.metrics_page`. With `--check`, compare
instead, and exit with 1 on a difference.

The Prometheus names come from the real exporter: every metric is exported once, with an invented value.
"""

import sys
from functools import cache
from pathlib import Path

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry

from feedmux_server.telemetry.labels import Labels
from feedmux_server.telemetry.metrics import METRICS, Kind, Metric
from feedmux_server.telemetry.otel_observer import OtelObserver
from feedmux_server.telemetry.otel_setup import make_instruments
from tests.written import Written

COMMAND = "python -m tests.telemetry.metrics_page"
PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

_HEAD = f"""\
# Metrics

The metrics that a server exports: to Prometheus on the page of `listen.metrics`, and by OTLP if that is configured
([telemetry.md](telemetry.md)). Written by `{COMMAND}`
from `server/feedmux_server/telemetry/metrics.py`.

Every series is of one replica. Attributes are bounded: `feedmux.tenant` to the first `telemetry.tenants` tenants in
order of appearance (all further tenants are `other`), `error.type` to 50 names, the others by their nature. In
Prometheus, the dots of an attribute are underscores, and an attribute that a value does not have is empty.

| metric | in Prometheus | kind | unit | attributes | description |
|---|---|---|---|---|---|
"""


@cache
def series() -> dict[Metric, str]:
    """The name of each metric in Prometheus, without the suffixes of a histogram's series."""
    registry = CollectorRegistry()
    provider = MeterProvider([PrometheusMetricReader(scope_info_enabled=False, registry=registry)])
    meter = provider.get_meter("page")
    observing = OtelObserver(meter, None, Labels(1))
    make_instruments(meter, lambda metric: [(1.0, dict.fromkeys(metric.attributes, "x"))])
    for metric, histogram in observing.histograms.items():
        histogram.record(1.0, dict.fromkeys(metric.attributes, "x"))
    families = {family.documentation: family for family in registry.collect()}
    found = {}
    for metric in METRICS:
        family = families[metric.description]
        names = {sample.name for sample in family.samples}
        found[metric] = family.name if metric.kind is Kind.HISTOGRAM else next(iter(names))
    provider.shutdown()
    return found


def page() -> str:
    """The Markdown of the page."""
    return _HEAD + "".join(_row(metric, name) for metric, name in series().items())


def _row(metric: Metric, name: str) -> str:
    attributes = ", ".join(f"`{each}`" for each in metric.attributes)
    return (
        f"| `{metric.name}` | `{name}` | {metric.kind} | {metric.unit} | {attributes} |"
        f" {metric.description.replace('|', chr(92) + '|')} |\n"
    )


WRITTEN = Written(COMMAND, {PAGE: page})


if __name__ == "__main__":
    sys.exit(WRITTEN.main(sys.argv[1:]))
