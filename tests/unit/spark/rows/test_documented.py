"""`docs/rows.md` matches the code."""

from collections.abc import Iterator
from pathlib import Path

from feedmux_spark.rows.columns import COLUMNS, DECODED, HAS_DOCUMENT, TYPE_MISMATCH
from feedmux_spark.rows.convert import KEY_TAKES, TAKES
from feedmux_spark.rows.token_order import SORT_KEY_BYTES

DOCUMENT = Path(__file__).parents[4] / "spark_connector" / "docs" / "rows.md"


def table(*header: str) -> list[list[str]]:
    """The rows of the table with this header."""
    lines = DOCUMENT.read_text().splitlines()
    at = lines.index(f"| {' | '.join(header)} |")
    return list(_cells(lines[at + 2 :]))


def _cells(lines: list[str]) -> Iterator[list[str]]:
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_columns() -> None:
    assert table("column", "type", "null", "is") == [
        [f"`{name}`", column.type.simpleString().upper(), "yes" if column.nullable else "no", column.meaning]
        for name, column in COLUMNS.items()
    ]


def test_the_columns_of_typed_rows() -> None:
    names = [row[0].strip("`") for row in table("column", "type", "from")]
    assert {*names} == {*DECODED, HAS_DOCUMENT, TYPE_MISMATCH, "event"}
    for name, _, origin in table("column", "type", "from"):
        if name.strip("`") in DECODED:
            assert origin.startswith(f"`{DECODED[name.strip('`')][0]}`")


def test_what_columns_take() -> None:
    assert table("column", "takes") == [list(each) for each in TAKES.items()]
    assert table("column of `document_key`", "takes") == [list(each) for each in KEY_TAKES.items()]


def test_the_sort_key() -> None:
    assert table("bytes", "is")[-1][0].endswith(f"–{SORT_KEY_BYTES}")
    assert f"{SORT_KEY_BYTES} bytes" in COLUMNS["sort_key"].meaning
