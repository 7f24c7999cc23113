"""docs/threat-model.md names tests that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.tables import over

REPOSITORY = Path(__file__).parents[2]
_TEXTS = {
    path: path.read_text()
    for pattern in ("tests/**/*.py", "tests/**/*.yaml", "clients/**/*.go", "clients/**/*.ts", "clients/**/*Test.java")
    for path in REPOSITORY.glob(pattern)
    if "node_modules" not in path.parts
}


def rows() -> Iterator[tuple[str, str]]:
    """Each attack with the text of the table about its test."""
    table = (REPOSITORY / "docs" / "threat-model.md").read_text().partition("## Attacks and defences")[2]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) == 3 and cells[0] != "attack":
            yield cells[0], cells[2]


ROWS = list(rows())


@over(("attack", "test"), ROWS)
def test_every_attack_has_tests_that_exist(attack: str, test: str) -> None:
    names = re.findall(r"`([^`]+)`", test)
    assert names, attack
    for name in names:
        if name.endswith(".py"):
            assert any(path.as_posix().endswith(f"/{name}") for path in _TEXTS), name
        else:
            for part in name.split(": "):
                assert any(part in text for text in _TEXTS.values()) or part in {path.stem for path in _TEXTS}, part
