"""Write the table in the chart's README from the comments in values.yaml: `python -m tests.helm.values_table`. With
`--check`, compare instead, and exit with 1 on a difference.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.written import Written

COMMAND: Final = "python -m tests.helm.values_table"
CHART: Final = Path(__file__).parents[2] / "helm" / "feedmux"
README: Final = CHART / "README.md"
VALUES: Final = CHART / "values.yaml"
PLACE: Final = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end -->)", re.DOTALL)
_EXAMPLE: Final = re.compile(r"#(?= {2,}\S)")
_COMMENT: Final = re.compile(r" *# (.*)")
_KEY: Final = re.compile(r"( *)(\w+):(?: (.+))?")


class Row(NamedTuple):
    """One value of the chart."""

    path: str
    default: str
    description: str


def rows(text: str) -> Iterator[Row]:
    """The values that have a comment. A commented example (`#  main:`) describes the entries of its section."""
    defaults = yaml.safe_load(text)
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        is_example = _EXAMPLE.match(line) is not None
        line = _EXAMPLE.sub("", line, count=1) if is_example else line
        if found := _COMMENT.fullmatch(line):
            comment.append(found[1])
            continue
        if found := _KEY.fullmatch(line):
            path[len(found[1]) // 2 :] = [found[2]]
            if comment and is_example:
                yield Row(".".join((path[0], "NAME", *path[2:])), _of_example(found[3]), " ".join(comment))
            elif comment:
                yield Row(".".join(path), json.dumps(_at(defaults, path)), " ".join(comment))
        comment = []


def _at(values: Any, path: Sequence[str]) -> Any:
    for name in path:
        values = values[name]
    return values


def _of_example(text: str) -> str:
    """An example shows a default only where it is empty."""
    value = yaml.safe_load(text)
    is_empty = not any(value.values()) if isinstance(value, dict) else not value
    return json.dumps(value) if is_empty else ""


def table() -> str:
    """The Markdown of the table."""
    lines = ["| value | default | description |", "|---|---|---|"]
    for row in rows(VALUES.read_text("utf-8")):
        description = row.description.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{row.path}` | {f'`{row.default}`' if row.default else ''} | {description} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The README with the present table."""
    text, count = PLACE.subn(lambda _: table(), README.read_text("utf-8"))
    if count != 1:
        raise ValueError(f"{README.name} must have one place for the table, from <!-- values --> to <!-- end -->")
    return text


WRITTEN = Written(COMMAND, {README: page})


if __name__ == "__main__":
    sys.exit(WRITTEN.main(sys.argv[1:]))
