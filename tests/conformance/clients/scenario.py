"""Scenario files: read, checked and multiplied by their cases. README.md says what their steps mean."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

FOLDER: Final = Path(__file__).parent / "scenarios"
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_KEYS: Final = {"shows", "clients", "stage", "server", "client", "steps", "cases"}
STAGES: Final = ("server", "own", "guarded", "certified", "scripted")

Step = tuple[str, Any]

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C where PyYAML has it: each process of a test run loads all scenarios."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of a scenario."""

    name: str
    steps: list[Any]
    client: dict[str, Any]
    scripts: list[list[Any]]
    """Of the scripted server: one for each call, the last one for all that follow."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A script of what happens and what a client must report."""

    group: str
    """The file's name: what the scenarios in it are about."""
    name: str
    shows: str
    stage: str
    cases: list[Case] = field(repr=False)
    clients: tuple[str, ...] = ()
    """Those that can do this; empty for all."""

    def is_of(self, client: str) -> bool:
        return not self.clients or client in self.clients

    @property
    def id(self) -> str:
        return f"{self.group}-{self.name}"


@cache
def scenarios() -> tuple[Scenario, ...]:
    """All of them, by file and place. Raises ValueError for a file that cannot be played."""
    found: list[Scenario] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        content = yaml.load(path.read_text("utf-8"), LOADER)
        found += [_scenario(path.stem, name, entry) for name, entry in content.items()]
    return tuple(found)


def one_step(step: Any) -> Step:
    """A step is a verb, or a mapping with one verb and its argument."""
    if isinstance(step, str):
        return step, None
    if isinstance(step, Mapping) and len(step) == 1:
        ((verb, argument),) = step.items()
        return verb, argument
    raise ValueError(f"not one step: {step!r}")


def _scenario(group: str, name: str, entry: Mapping[str, Any]) -> Scenario:
    where = f"{group}.yaml: {name}"
    if unknown := set(entry) - _KEYS:
        raise ValueError(f"{where}: unknown {', '.join(sorted(unknown))}")
    stage = entry.get("stage", "scripted" if "server" in entry else "server")
    if stage not in STAGES or (stage == "scripted") != ("server" in entry):
        raise ValueError(f"{where}: stage {stage!r}")
    cases = []
    for case, values in entry.get("cases", {"": None}).items():
        given = None if values is None else {"reason": case} | values
        filled = _filled({key: entry.get(key) for key in ("steps", "client", "server")}, given)
        cases.append(Case(case, filled["steps"], filled["client"] or {}, filled["server"] or []))
    return Scenario(group, name, " ".join(entry["shows"].split()), stage, cases, tuple(entry.get("clients", ())))


def _filled(node: Any, values: Mapping[str, Any] | None) -> Any:
    """`1..3` stands for [1, 2, 3], `$name` for the case's value of that name (null where it has none).

    `$reason` is the name of the case where it has no other value. Where there are no cases (`values` is None) a `$name`
    is a path of MongoDB's.
    """
    match node:
        case dict():
            return {key: _filled(value, values) for key, value in node.items()}
        case list():
            return [_filled(value, values) for value in node]
        case str() if node.startswith("$") and values is not None:
            return _filled(values.get(node[1:]), values)
        case str() if found := _RANGE.fullmatch(node):
            return list(range(int(found[1]), int(found[2]) + 1))
    return node
