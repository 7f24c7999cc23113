"""What `./run sim --coverage` reports about a file."""

from pathlib import Path

from feedmux_server.core.limits import backoff
from tests.sim.executed import GROUPS, executed_by, of_group, ranges


def test_lines_of_functions_that_were_not_executed() -> None:
    assert backoff.__file__ is not None
    file = Path(backoff.__file__)

    def half() -> None:
        backoff.Backoff(0.1, 1.0, 2.0, 0.5).reset()

    found = executed_by(half)
    left = file.read_text().splitlines()
    assert [left[number - 1].split()[0] for number in found[file].missing] == [
        "raise",
        "delay_s",
        "self._next_s",
        "return",
    ]
    core = next(group for group in GROUPS if group.name == "core")
    assert 0 < of_group(core, found).share < 0.05


def test_lines_are_shown_as_ranges() -> None:
    assert ranges((12, 13, 14, 20, 22, 23)) == "12-14 20 22-23"
    assert ranges(()) == ""
