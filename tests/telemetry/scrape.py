"""The metrics page of a server, as Prometheus reads it."""

import asyncio
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of the page."""

    families: tuple[Metric, ...]
    text: str

    def samples(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Those of a series' name that have these labels; `feedmux_` may be left out of a label."""
        wanted = {_label(key): value for key, value in labels.items()}
        for family in self.families:
            for sample in family.samples:
                if sample.name == name and wanted.items() <= sample.labels.items():
                    yield sample.labels, sample.value

    def value(self, name: str, **labels: str) -> float:
        """The sum of those; 0 where there are none."""
        return sum(value for _, value in self.samples(name, **labels))

    def has(self, name: str, **labels: str) -> bool:
        return any(True for _ in self.samples(name, **labels))

    def labels(self) -> dict[str, set[str]]:
        """The labels of every series by its name."""
        found: dict[str, set[str]] = {}
        for family in self.families:
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        return found


def _label(key: str) -> str:
    return key if key.startswith(("rpc_", "error_", "le")) else f"feedmux_{key}"


async def scrape(port: int | None) -> Scrape:
    """Reads the page, off the event loop that it asks."""
    assert port is not None
    text = await asyncio.to_thread(_read, f"http://127.0.0.1:{port}/metrics")
    return Scrape(tuple(text_string_to_metric_families(text)), text)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())
