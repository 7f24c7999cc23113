"""The checks of `./run lint`, each as a test: its failure is the command's output."""

import filecmp
import subprocess
import sys
from pathlib import Path

from tests.tables import over

REPOSITORY = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent
COMMANDS = {
    "ruff check": "ruff check --quiet .",
    "ruff format": "ruff format --quiet --check --diff .",
    "mypy": "mypy --no-error-summary clients/python/feedmux server spark_connector tests bench demo release.py",
    "import-linter": "lint-imports --no-logo",
    "buf lint": "buf lint proto",
    "buf breaking": "buf breaking proto --against proto/last_release.yaml",
}
GENERATED = "clients/python/feedmux/v1"


def output_of(command: list[str]) -> tuple[int, str]:
    """Exit status and output of a command in the repository."""
    done = subprocess.run(
        command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode(errors="replace")


@over("name", COMMANDS)
def test_check(name: str) -> None:
    tool, *arguments = COMMANDS[name].split()
    status, output = output_of([str(TOOLS / tool), *arguments])
    assert status == 0, f"{name}:\n{output}"


def test_generated_code_is_that_of_proto(tmp_path: Path) -> None:
    status, output = output_of([str(REPOSITORY / "run"), "proto", str(tmp_path)])
    assert status == 0, output
    committed, fresh = REPOSITORY / GENERATED, tmp_path / "feedmux" / "v1"
    names = [{path.name for path in folder.iterdir() if path.is_file()} for folder in (committed, fresh)]
    assert names[0] == names[1], "files of clients/python/feedmux/v1 and of proto/: ./run proto"
    _, differing, unreadable = filecmp.cmpfiles(committed, fresh, sorted(names[1]), shallow=False)
    assert not differing + unreadable, f"generated code differs from proto/: ./run proto ({', '.join(differing)})"
