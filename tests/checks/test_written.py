"""Files that are written from their sources match them; `tests/written.py` compares them."""

from pathlib import Path

import pytest

from tests.conformance import statements
from tests.conformance.clients import table
from tests.helm import config_schema, values_table
from tests.reference import connection, pages
from tests.telemetry import metrics_page
from tests.written import Written

ALL = (
    pages.WRITTEN,
    connection.WRITTEN,
    metrics_page.WRITTEN,
    config_schema.WRITTEN,
    values_table.WRITTEN,
    table.WRITTEN,
    statements.WRITTEN,
)


@pytest.mark.parametrize(
    ("written", "path"),
    [pytest.param(each, path, id=path.name) for each in ALL for path in each.files],
)
def test_a_file_is_that_of_its_sources(written: Written, path: Path) -> None:
    assert not written.check(path), written.check(path)


def test_there_is_no_other_page_of_reference() -> None:
    assert set(pages.FOLDER.iterdir()) == set(pages.WRITTEN.files)


def test_a_file_that_is_not_says_so_and_is_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.md"
    path.write_text("# Page\nold\n")
    written = Written("python -m tests.page", {path: lambda: "# Page\nnew\n"})
    assert written.main(["--check"]) == 1
    shown = capsys.readouterr().err
    assert "page.md does not match its sources; write it again: python -m tests.page" in shown
    assert "-old\n+new" in shown
    assert written.main(["--chek"]) == 2
    assert written.main([]) == 0
    assert path.read_text() == "# Page\nnew\n"
    assert written.main(["--check"]) == 0
