"""The series and labels that a PromQL expression requests from Prometheus. The expression is not evaluated."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "helm" / "feedmux"
RULES = FOLDER / "rules" / "feedmux.yaml"
DASHBOARD = FOLDER / "dashboards" / "feedmux.json"
RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"

TARGET_LABELS = frozenset({"instance", "job", "namespace", "pod", "service", "container", "endpoint", "le"})
"""Labels that Prometheus adds to a scrape; `le` is a histogram's label."""
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")|(?P<duration>\[[^\]]*\])|(?P<name>[a-zA-Z_:][\w:]*)|(?P<number>\d[\w.]*)|(?P<sign>\S)""",
)
_OPERATORS = frozenset({"and", "or", "unless", "bool", "offset"})
_LABEL_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})


@dataclass(frozen=True)
class Asked:
    """The series and labels that one expression needs."""

    series: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """By series name: each label that is matched, with the patterns."""
    labels: set[str] = field(default_factory=set)
    """Labels that are kept, dropped or joined on."""


def asked(expression: str) -> Asked:
    """Parse an expression. Raises ValueError for brackets that do not match."""
    found = Asked()
    tokens = [(match.lastgroup, match.group()) for match in _TOKEN.finditer(expression)]
    depth = 0
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        depth += (text in "({") - (text in ")}") if kind == "sign" else 0
        if depth < 0:
            raise ValueError(f"brackets do not match: {expression}")
        if kind == "name" and text in _LABEL_LISTS:
            end = tokens.index(("sign", ")"), at)
            found.labels.update(each for what, each in tokens[at:end] if what == "name" and each not in _LABEL_LISTS)
            at = end
        elif kind == "name" and text not in _OPERATORS and following not in ("(", *_LABEL_LISTS):
            matchers = found.series.setdefault(text, {})
            if following == "{":
                at = _matchers(tokens, at + 2, matchers)
        at += 1
    if depth:
        raise ValueError(f"brackets do not match: {expression}")
    return found


def _matchers(tokens: list[tuple[str | None, str]], at: int, into: dict[str, list[str]]) -> int:
    """Read `label="value",…}` and return the index of its end."""
    label = ""
    while tokens[at][1] != "}":
        kind, text = tokens[at]
        if kind == "name":
            label = text
        elif kind == "string":
            into.setdefault(label, []).append(text[1:-1])
        at += 1
    return at


@dataclass(frozen=True)
class Query:
    """One expression, and the alert or panel that contains it."""

    where: str
    expression: str


def rules() -> list[dict[str, Any]]:
    """The alerts."""
    content = yaml.safe_load(RULES.read_text("utf-8"))
    return [rule for group in content["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return content


def queries() -> Iterator[Query]:
    """The expressions of all alerts and all panels, with Grafana's variables filled in."""
    for rule in rules():
        yield Query(rule["alert"], rule["expr"])
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m")
            yield Query(panel["title"], re.sub(r'"\$\w+"', '".*"', expression))
