"""Results, as a table for people and as one JSON object for programs; progress goes to standard error."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Target:
    """The limit that a figure must meet."""

    figure: str
    bound: Literal["at_least", "at_most"]
    limit: float
    value: float

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.bound == "at_least" else self.value <= self.limit

    def as_json(self) -> dict[str, Any]:
        return {"figure": self.figure, self.bound: self.limit, "value": _rounded(self.value), "met": self.met}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a benchmark."""

    title: str
    """The name, and what was measured."""
    ours: str
    """The heading of the column of `figures`."""
    theirs: str
    """The heading of the column of `alternative`."""
    figures: Figures
    alternative: Figures
    ratio: float
    ratio_of: str
    """A description of the ratio's numerator and denominator."""
    targets: Sequence[Target]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def met(self) -> bool:
        return all(target.met for target in self.targets)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.title.partition(":")[0],
            "figures": {name: _rounded(value) for name, value in self.figures.items()},
            "alternative": {name: _rounded(value) for name, value in self.alternative.items()},
            "ratio": _rounded(self.ratio),
            "target": [target.as_json() for target in self.targets],
            "met": self.met,
        }

    def as_table(self) -> str:
        names = [*self.figures, *(name for name in self.alternative if name not in self.figures)]
        rows = [("", self.ours, self.theirs)]
        rows += [(_words(name), _shown(self.figures.get(name)), _shown(self.alternative.get(name))) for name in names]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [self.title, ""]
        for index, (name, ours, theirs) in enumerate(rows):
            lines.append(f"  {name:<{widths[0]}}  {ours:>{widths[1]}}  {theirs:>{widths[2]}}".rstrip())
            if index == 0:
                lines.append(f"  {'-' * (sum(widths) + 4)}")
        lines += ["", f"  ratio {self.ratio:.3g}: {self.ratio_of}"]
        for target in self.targets:
            sign = "≥" if target.bound == "at_least" else "≤"
            verdict = "reached" if target.met else f"NOT reached: {_shown(target.value)}"
            lines.append(f"  target {_words(target.figure)} {sign} {_shown(target.limit)}: {verdict}")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


def medians(runs: Sequence[Figures]) -> dict[str, float]:
    """Return the median of each figure over the runs."""
    return {name: median(run[name] for run in runs) for name in runs[0]}


def median_ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of the ratios within each pair of runs, which meet similar conditions of the machine."""
    return median(one / other for one, other in zip(over, under, strict=True))


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
