"""Marks scenarios with the statements they show, and makes the table of them all (`docs/conformance.md`).

`python -m tests.conformance.statements` writes the table; with `--check` it compares, and exits with 1 on a
difference.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from tests.written import Written

COMMAND = "python -m tests.conformance.statements"
TABLE = Path(__file__).parents[2] / "docs" / "conformance.md"

DRIVERS = "Driver specification"
SERVER = "Server overview"
EVENTS = "Manual: change events"
UPDATES = "Manual: update event"
PYMONGO = "pymongo"
FEEDMUX = "feedmux's contract"
DOCUMENTS = (DRIVERS, SERVER, EVENTS, UPDATES, PYMONGO, FEEDMUX)

_HEAD = """\
# Conformance

What a consumer of a change stream can rely on, by the documents that say so, and the scenario in `tests/conformance`
that shows it through the service on a real MongoDB. Written by `python -m tests.conformance.statements`.
"""


@dataclass(frozen=True, slots=True)
class Statement:
    """One line of the table."""

    document: str
    section: str
    text: str
    scenario: str
    """Node id of the test, without its parameters."""


def shows(document: str, section: str, text: str) -> pytest.MarkDecorator:
    """`@shows(DRIVERS, "Resume Process", "…")`: the scenario shows this statement, in our words. May be repeated."""
    if document not in DOCUMENTS:
        raise ValueError(f"no document {document!r}")
    return pytest.mark.shows(document, section, text)


def collect() -> list[Statement]:
    """The statements of all scenarios, in the order of the documents, then of their sections' first appearance."""
    found: dict[Statement, None] = {}

    class Plugin:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            for item in session.items:
                # Decorators apply from the bottom up; the table reads from the top down.
                for mark in reversed(list(item.iter_markers("shows"))):
                    document, section, text = mark.args
                    found[Statement(document, section, text, item.nodeid.partition("[")[0])] = None

    folder = str(Path(__file__).parent)
    with redirect_stdout(StringIO()) as said:
        code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", folder], [Plugin()])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"the scenarios cannot be collected: pytest exits with {code}\n{said.getvalue()}")
    return sorted(found, key=lambda each: DOCUMENTS.index(each.document))


def table(statements: Sequence[Statement]) -> str:
    """The Markdown of the table."""
    lines = [_HEAD]
    by_document: dict[str, dict[str, list[Statement]]] = defaultdict(lambda: defaultdict(list))
    for each in statements:
        by_document[each.document][each.section].append(each)
    for document, sections in by_document.items():
        lines += [f"## {document}", "", "| section | statement | scenario |", "|---|---|---|"]
        for section, rows in sections.items():
            lines += [f"| {section} | {_cell(row.text)} | {_link(row.scenario)} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _link(scenario: str) -> str:
    path, _, name = scenario.partition("::")
    return f"[`{name}`](../{path})"


WRITTEN = Written(COMMAND, {TABLE: lambda: table(collect())})


if __name__ == "__main__":
    sys.exit(WRITTEN.main(sys.argv[1:]))
