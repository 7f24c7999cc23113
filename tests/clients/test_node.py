"""The Node client: it installs from its lock file, is clean and typed, passes its own tests, and its example runs."""

import shutil
from pathlib import Path

import pytest

from tests.clients.conftest import Example, run

FOLDER = Path(__file__).parents[2] / "clients" / "node"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="node and npm are not installed"
)


@pytest.fixture(scope="module")
def package() -> Path:
    """The package's folder, with what it depends on installed as the lock file says, and built."""
    run(FOLDER, "./compile")
    # As `npm run build` does, which would generate the sources again, and so make others compile again. The types were
    # checked above.
    shutil.rmtree(FOLDER / "dist", ignore_errors=True)
    run(FOLDER, "npm", "exec", "--", "tsc", "--noCheck", "-p", "tsconfig.dist.json")
    return FOLDER


@pytest.mark.parametrize("script", [pytest.param("lint", marks=pytest.mark.full), "unit"])
def test_script(package: Path, script: str) -> None:
    run(package, "npm", "run", script)


def test_the_readme_shows_the_example_as_it_is() -> None:
    program = (FOLDER / "examples" / "orders.js").read_text()
    assert f"```js\n{program}```\n" in (FOLDER / "README.md").read_text()


def test_the_example_goes_on_where_it_stopped(package: Path, example: Example) -> None:
    command = [str(shutil.which("node")), "examples/orders.js"]
    # Documents are printed over several lines.
    printed = [line for _ in range(2) for line in example(command, package, count=100)]
    events = [line for line in printed if not line.startswith((" ", "}"))]
    assert {line.split()[0] for line in events} <= {"insert", "update", "replace", "delete"}
    inserted = [line for line in events if line.startswith("insert")]
    assert inserted
    assert len(inserted) == len(set(inserted))
