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
        """The samples of this name that have these labels; the prefix `feedmux_` of a label may be omitted."""
        wanted = {_label(key): value for key, value in labels.items()}
        for family in self.families:
            for sample in family.samples:
                if sample.name == name and wanted.items() <= sample.labels.items():
                    yield sample.labels, sample.value

    def value(self, name: str, **labels: str) -> float:
        """The sum of these samples; 0 if there are none."""
        return sum(value for _, value in self.samples(name, **labels))

    def has(self, name: str, **labels: str) -> bool:
        return any(True for _ in self.samples(name, **labels))

    def labels(self) -> dict[str, set[str]]:
        """The labels of every series, by series name."""
        found: dict[str, set[str]] = {}
        for family in self.families:
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
        return found


def _label(key: str) -> str:
    return key if key.startswith(("rpc_", "error_", "le")) else f"feedmux_{key}"


async def scrape(port: int | None) -> Scrape:
    """Read the page in a thread, because the server may run on this event loop."""
    assert port is not None
    text = await asyncio.to_thread(_read, f"http://127.0.0.1:{port}/metrics")
    return Scrape(tuple(text_string_to_metric_families(text)), text)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())
