"""Errors as messages: the reason, and the next step where there is one."""

from errno import ENOENT

import pytest

from feedmux import cli
from feedmux.cli.failure import PORTS_HINT, SERVER_HINT, WAITS_HINT, CliError, as_cli_error
from feedmux.errors import Unavailable, make_error
from tests.tables import over


def test_a_server_that_waits_is_not_called_unreachable() -> None:
    found = as_cli_error(Unavailable("Deadline Exceeded", status="DEADLINE_EXCEEDED"), "here:1")
    assert found is not None
    assert (found.message, found.hint) == ("here:1 has not answered in time", WAITS_HINT)


@over(
    ("status", "reason", "metadata", "message", "hint"),
    [
        ("UNAVAILABLE", "", {}, "cannot reach here:1 (Connection refused)", SERVER_HINT),
        ("UNAVAILABLE", "SOURCE_UNAVAILABLE", {}, "all: ipv4:1: Connection refused", ""),
        ("UNIMPLEMENTED", "", {}, "here:1 is a gRPC server, but not a feedmux server's data port", PORTS_HINT),
        ("NOT_FOUND", "SUBSCRIPTION_NOT_FOUND", {}, "", "`feedmux subscriptions list` shows the existing ones."),
        ("NOT_FOUND", "SOURCE_NOT_FOUND", {}, "", "Name a source of the server's configuration with --source"),
        ("ALREADY_EXISTS", "SUBSCRIPTION_EXISTS", {}, "", "`update` changes it"),
        ("ABORTED", "FENCED", {"cause": "DELETE"}, "", "`feedmux subscriptions list` shows the existing ones."),
        ("ABORTED", "FENCED", {"cause": "TAKEOVER"}, "", ""),
        ("OUT_OF_RANGE", "HISTORY_LOST", {}, "", "Start at --start earliest, or at a later time."),
        ("OUT_OF_RANGE", "HISTORY_LOST", {"oldest_time": "noon"}, "", "Start at --start earliest (noon), or"),
        ("OUT_OF_RANGE", "TIMELINE_FORKED", {}, "", "Start at --start latest, earliest; move a subscription with"),
        ("OUT_OF_RANGE", "TIMELINE_FORKED", {"last_common_time": "noon"}, "", "--start latest, earliest or noon;"),
        ("INTERNAL", "INTERNAL", {"correlation_id": "c-1"}, "", "search its log for c-1."),
        ("INTERNAL", "", {}, "", ""),
    ],
)  # fmt: skip
def test_a_reason_and_the_next_step(
    status: str, reason: str, metadata: dict[str, str], message: str, hint: str
) -> None:
    found = as_cli_error(make_error(status, "all: ipv4:1: Connection refused", reason, metadata), "here:1")
    assert found is not None
    assert found.message == (message or "all: ipv4:1: Connection refused")
    assert hint in found.hint
    assert bool(hint) == bool(found.hint)


def test_a_defect_is_not_explained() -> None:
    assert as_cli_error(ValueError("a defect")) is None
    assert as_cli_error(OSError(ENOENT, "no such file")) is None
    error = CliError("an error of the command line")
    assert as_cli_error(error) is error


def test_no_control_character_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(_: list[str]) -> int:
        raise CliError("cannot convert \x1b[2J\nto a number", "Look at \x07.")

    monkeypatch.setattr(cli, "_run", fails)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == "feedmux: cannot convert ?[2J\nto a number\n  Look at ?.\n"
