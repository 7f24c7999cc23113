"""Code that can be simulated takes its time from one clock, and no order from addresses: a seed gives the same run.

The order of a `set` of objects follows their addresses, so a `dict[T, None]` is in its place: it keeps the order in
which they were added.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY = Path(__file__).parents[2]
OUTSIDE: Final = (
    "server/feedmux_server/cli/",
    "server/feedmux_server/clock.py",
    "server/feedmux_server/doctor.py",
    "server/feedmux_server/workers/check_worker.py",
    "server/feedmux_server/workers/side_process.py",
    "server/feedmux_server/source/checks.py",
    "server/feedmux_server/store/checks.py",
    "server/feedmux_server/telemetry/otel_setup.py",
    "server/feedmux_server/telemetry/otlp_logs.py",
    "server/feedmux_server/tenants/jwks.py",
    "clients/python/feedmux/cli/",
    "clients/python/feedmux/member.py",
    "clients/python/feedmux/session.py",
    "clients/python/feedmux/v1/",
)
"""Threads, processes and commands: they run with the world's clock."""
ORDERED: Final = frozenset({"int", "str", "bytes", "tuple"})
"""Sets of these may be: their order is that of their values, in the same run."""


def find(source: str) -> Iterator[str]:
    """What the order or the time of a run would depend on, by line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names) if any(each.name == "time" for each in names):
                yield f"{node.lineno}: times come from feedmux_server/clock.py, or from the event loop"
            case ast.ImportFrom(module="time"):
                yield f"{node.lineno}: times come from feedmux_server/clock.py, or from the event loop"
            case ast.Attribute(value=ast.Name(id="datetime"), attr="now" | "utcnow" | "today"):
                yield f"{node.lineno}: times come from feedmux_server/clock.py"
            case ast.AnnAssign(annotation=annotation):
                for part in ast.walk(annotation):
                    if isinstance(part, ast.Subscript) and ast.unparse(part.value) == "set":
                        kind = part.slice.value if isinstance(part.slice, ast.Subscript) else part.slice
                        if ast.unparse(kind) not in ORDERED:
                            yield f"{node.lineno}: a set of objects has no order: dict[{ast.unparse(part.slice)}, None]"


def test_a_seed_gives_the_same_run() -> None:
    found = []
    for folder in ("server/feedmux_server", "clients/python/feedmux"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            name = path.relative_to(REPOSITORY).as_posix()
            if not name.startswith(OUTSIDE):
                found += [f"{name}:{each}" for each in find(path.read_text())]
    assert not found, "\n".join(found)


def test_what_is_outside_is_there() -> None:
    assert [each for each in OUTSIDE if not (REPOSITORY / each).exists()] == []
