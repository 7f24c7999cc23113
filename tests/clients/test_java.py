"""The Java client: built, linted and tested by Maven; its README's example runs as it stands against a real server."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.clients.conftest import Example, run

FOLDER = Path(__file__).parents[2] / "clients" / "java"
EXAMPLE = FOLDER / "examples" / "OrdersToSearch.java"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Maven and the tests end before Java's second compiler has saved what it costs."""

missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"no {' and no '.join(missing)} on this machine")


@pytest.fixture(scope="module")
def built() -> None:
    """Apart from the tests, because on a fresh machine this downloads what everything else needs."""
    run(FOLDER, "conformance/run", "--build")


@pytest.mark.usefixtures("built")
def test_passes_and_is_formatted(environment: dict[str, str]) -> None:
    options = f"{QUICK} {os.environ.get('MAVEN_OPTS', '')}"
    # Goals, and not `verify`, which would generate and compile everything again.
    goals = ("surefire:test", "spotless:check")
    run(FOLDER, "mvn", "-B", "-ntp", *goals, f"-DargLine={QUICK}", environment={"MAVEN_OPTS": options, **environment})


def test_the_readme_shows_the_example_as_it_is() -> None:
    assert f"```java\n{EXAMPLE.read_text()}```\n" in (FOLDER / "README.md").read_text()


@pytest.mark.usefixtures("built")
def test_the_example_goes_on_where_it_stopped(example: Example) -> None:
    command = [str(shutil.which("java")), "-cp", "target/classes:target/lib/*", EXAMPLE]
    first, second = (example(command, FOLDER, code=128 + signal.SIGINT) for _ in range(2))
    before, after = ([line for line in lines if line.startswith("insert ")] for lines in (first, second))
    assert before
    assert len(before) == len(set(before))
    assert len(after) == len(set(after))
    # Java ends beside the loop: what was printed when Ctrl-C came may not have been acked, and comes again.
    assert set(before) & set(after) <= set(first[-1:])
    assert {line.split()[0] for line in first + second} <= {"insert", "update"}
