"""pyproject.toml says which version this is, and every other file that names it agrees."""

import re
import shutil
from pathlib import Path

import pytest

from release import COPIES, SOURCE, NotReady, differences, project_version, set_version
from tests.started import ran

REPOSITORY = Path(__file__).parents[2]
FILES = sorted({place.file for place in (SOURCE, *COPIES)})
NOT_OURS = re.compile(r"(^|/)(package-lock\.json|go\.(mod|sum)|constraints\.txt|CHANGELOG\.md)$|^tests/|^proto/")
"""Files with versions of others, or of former releases."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that name the version, in a folder of their own."""
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, tmp_path / file)
    return tmp_path


def test_every_file_names_the_version_of_pyproject() -> None:
    assert differences() == {}, "these files name another version: ./run release set-version X.Y.Z"


def test_another_version_in_one_place_is_found(copy: Path) -> None:
    for place in COPIES:
        path = copy / place.file
        text = path.read_text()
        path.write_text(place.pattern.sub(r"\g<1>99.98.97\g<3>", text))
        assert differences(copy) == {place.file: "99.98.97"}
        path.write_text(text)


def test_set_version_changes_every_file_and_nothing_else(copy: Path) -> None:
    before = {file: (copy / file).read_text() for file in FILES}
    old = project_version(copy)
    assert set_version("99.98.97", copy) == FILES
    assert differences(copy) == {}
    assert project_version(copy) == "99.98.97"
    for file in FILES:
        after = (copy / file).read_text()
        assert "99.98.97" in after
        back = after.replace("99.98.97", old)
        assert [line for line in back.splitlines() if "outputTimestamp" not in line] == [
            line for line in before[file].splitlines() if "outputTimestamp" not in line
        ]


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "1.2.3rc1", "1.2.3-rc.1", "01.2.3", "1.2.3\n"])
def test_set_version_refuses_what_not_every_registry_reads_alike(version: str, copy: Path) -> None:
    with pytest.raises(NotReady, match=r"1\.2\.3"):
        set_version(version, copy)
    assert differences(copy) == {}


def test_no_other_file_names_the_version() -> None:
    """Where this fails, add a Place to COPIES in release.py, or do without the number."""
    version = project_version()
    named = ran("git", "grep", "--untracked", "-lIwF", version, cwd=REPOSITORY).stdout.split()
    assert [file for file in named if file not in FILES and not NOT_OURS.search(file)] == []
