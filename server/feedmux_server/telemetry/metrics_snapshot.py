"""The values of metrics at one moment, by their attributes.

`jobs.metrics_collector` makes a snapshot on the event loop, and the exporting threads read it. Tenants beyond the bound
share one value.
"""

from collections.abc import Iterator

from feedmux_server.telemetry.labels import Labels
from feedmux_server.telemetry.metrics import TENANT, Metric

Values = tuple[str, ...]


class MetricsSnapshot:
    """Attribute values are given in the order of `Metric.attributes`."""

    __slots__ = ("_points", "_tenants")

    def __init__(self, tenants: Labels) -> None:
        self._tenants = tenants
        self._points: dict[Metric, dict[Values, float]] = {}

    def add(self, metric: Metric, value: float, *attributes: str) -> None:
        """Add a value to the sum."""
        points, key = self._place(metric, attributes)
        points[key] = points.get(key, 0) + value

    def most(self, metric: Metric, value: float, *attributes: str) -> None:
        """Keep the largest value."""
        points, key = self._place(metric, attributes)
        points[key] = max(points.get(key, value), value)

    def least(self, metric: Metric, value: float, *attributes: str) -> None:
        """Keep the smallest value."""
        points, key = self._place(metric, attributes)
        points[key] = min(points.get(key, value), value)

    def take(self, other: "MetricsSnapshot") -> None:
        """Copy the current values of another snapshot; they replace this snapshot's values of the same metrics."""
        for metric, points in other._points.items():
            self._points[metric] = dict(points)

    def of(self, metric: Metric) -> Iterator[tuple[float, dict[str, str]]]:
        """Each value with its attributes; attributes without a value are omitted."""
        for values, value in self._points.get(metric, {}).items():
            yield value, {name: each for name, each in zip(metric.attributes, values, strict=True) if each}

    def _place(self, metric: Metric, values: Values) -> tuple[dict[Values, float], Values]:
        if TENANT in metric.attributes:
            at = metric.attributes.index(TENANT)
            values = (*values[:at], self._tenants.of(values[at]), *values[at + 1 :])
        points = self._points.get(metric)
        if points is None:
            points = self._points[metric] = {}
        return points, values
