"""The Go client: formatted, checked and tested by Go's own tools, and its README's example runs as it stands."""

import filecmp
import shutil
from pathlib import Path

import pytest

from tests.clients.conftest import Example, run

FOLDER = Path(__file__).parents[2] / "clients" / "go" / "feedmux"

FULL = pytest.mark.full
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("gcc") is None, reason="the race detector needs a C compiler")

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")


@pytest.mark.parametrize(
    "command",
    [
        ("go", "test", "-count=1", "-vet=off", "./..."),
        ("go", "mod", "tidy", "-diff"),
        pytest.param(("go", "vet", "./..."), marks=FULL),
        pytest.param(("go", "tool", "-modfile=tools/go.mod", "staticcheck", "./..."), marks=FULL),
        pytest.param(("go", "test", "-count=1", "-race", "./..."), marks=(FULL, NEEDS_COMPILER)),
    ],
    ids=" ".join,
)
@pytest.mark.timeout(1_200)  # the first time, they compile all that they need
def test_passes(command: tuple[str, ...]) -> None:
    run(FOLDER, *command, timeout_s=1_180.0)


def test_is_formatted() -> None:
    assert run(FOLDER, "gofmt", "-l", ".") == ""


def test_the_generated_code_is_that_of_proto(tmp_path: Path) -> None:
    (tmp_path / "feedmuxpb").mkdir()
    run(FOLDER, "./generate.sh", str(tmp_path))
    ours, fresh = FOLDER / "feedmuxpb", tmp_path / "feedmuxpb"
    names = sorted({each.name for folder in (ours, fresh) for each in folder.iterdir()})
    same, different, missing = filecmp.cmpfiles(ours, fresh, names, shallow=False)
    assert same
    assert not different + missing, "generated code differs from proto/: clients/go/feedmux/generate.sh"


def test_the_readme_shows_the_example_as_it_is() -> None:
    program = (FOLDER / "examples" / "orders" / "main.go").read_text()
    assert f"```go\n{program}```\n" in (FOLDER / "README.md").read_text()


def test_the_example_goes_on_where_it_stopped(example: Example, tmp_path: Path) -> None:
    program = tmp_path / "orders"
    run(FOLDER, "go", "build", "-o", str(program), "./examples/orders")
    first, second = (example([program], FOLDER) for _ in range(2))
    assert {line.split()[0] for line in first + second} <= {"insert", "update", "replace", "delete"}
    inserted = [line for line in first + second if line.startswith("insert")]
    assert inserted
    assert len(inserted) == len(set(inserted))
