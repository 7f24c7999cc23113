"""The table of metrics: the rules for every metric."""

import re
from collections import Counter

from feedmux_server.telemetry.metrics import METRICS, SOURCE, TENANT, Kind
from tests.telemetry.metrics_page import series


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
