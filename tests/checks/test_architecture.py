"""ARCHITECTURE.md shows the layers that import-linter enforces, and they cover every part of the server."""

import re
import tomllib
from pathlib import Path
from typing import Final

from tests.tables import over

REPOSITORY: Final = Path(__file__).parents[2]
SERVER: Final = REPOSITORY / "server/feedmux_server"
SHARED: Final = frozenset({"cancellation", "clock", "gc_tuning", "health_probe", "supervision", "yaml_with_lines"})
"""Modules that any layer may import, and a program of its own."""

Layers = list[set[str]]


def enforced(contract: str) -> Layers:
    linter = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    [layers] = [each["layers"] for each in linter["contracts"] if each["id"] == contract]
    return [{part.strip().strip("()").rpartition(".")[2] for part in layer.split("|")} for layer in layers]


def shown(comment: str) -> Layers:
    page = (REPOSITORY / "ARCHITECTURE.md").read_text()
    block = page.partition(f"<!-- {comment}")[2].split("```")[1]
    return [{part.strip() for part in re.split(r" {2,}", line)[0].split("|")} for line in block.strip().splitlines()]


@over(("contract", "comment"), [("layers", "layers:"), ("layers-of-core", "layers of core")])
def test_the_page_shows_the_layers(contract: str, comment: str) -> None:
    assert shown(comment) == enforced(contract)


@over(("folder", "contract", "shared"), [("", "layers", SHARED), ("core", "layers-of-core", frozenset())])
def test_every_part_belongs_to_a_layer(folder: str, contract: str, shared: frozenset[str]) -> None:
    parts = {
        path.stem for path in (SERVER / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"__init__"} - shared == set().union(*enforced(contract))
