"""The pages of docs/reference are what their sources give."""

import pytest

from tests.reference.pages import FOLDER, PAGES, check


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_that_of_its_sources(name: str) -> None:
    assert not check(name), check(name)


def test_there_is_no_other_page() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)
