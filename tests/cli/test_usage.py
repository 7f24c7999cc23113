"""What every command has in common: exit codes, one clear line for an error, extras that are not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from feedmux.cli import main
from tests.cli.conftest import FEEDMUX, TIMEOUT_S, clean_environment
from tests.started import ran

SERVER_PACKAGES = (
    "grpc_health",
    "grpc_reflection",
    "grpc_status",
    "pydantic",
    "pydantic_settings",
    "redis",
    "uvloop",
    "yaml",
)


def run_without(packages: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """As if these packages were not installed."""
    blocking = f"import sys; sys.modules.update(dict.fromkeys({packages!r}))"
    code = f"{blocking}; from feedmux.cli import main; sys.exit(main(sys.argv[1:]))"
    return ran(sys.executable, "-c", code, *arguments, env=clean_environment(), timeout_s=60)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bogus"],
        ["__complete", "bash"],
        ["watch", "shop."],
        ["watch", "shop", "--endpoint", "localhost"],
        ["watch", "shop", "--pipeline", "{"],
        ["watch", "shop", "--start", "sometime"],
        ["watch", "shop", "--raw", "--json"],
        ["watch", "--lim", "3"],
        ["subscriptions", "create"],
        ["token", "decode"],
        ["dev", "--rate", "0"],
        ["dev", "--port", "70000"],
        ["serve", "--log-level", "loud"],
    ],
)
def test_wrong_usage_exits_2_and_says_why(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as end:
        code = end.code
    assert code == 2
    told = capsys.readouterr()
    assert (told.err + told.out).strip()


@pytest.mark.parametrize("arguments", [["completion", "bash"], ["--help"]])
@pytest.mark.parametrize(
    ("shell", "status", "words"),
    [
        ('"$@" >&-', 0, ""),
        ('"$@" <&- >&- 2>&-', 0, ""),
        ('"$@" > /dev/full', 1, "feedmux: the output cannot be written: No space left on device"),
        ('ulimit -f 0; "$@" > "$0"', 1, "feedmux: the output cannot be written: File too large"),
        ('mkfifo "$0"; (: < "$0") & "$@" > "$0"', 0, ""),
    ],
)
def test_an_output_that_cannot_be_written(
    arguments: list[str], shell: str, status: int, words: str, tmp_path: Path
) -> None:
    """Also where Python writes what is left of it at the end."""
    environment = {name: value for name, value in clean_environment().items() if name != "PYTHONUNBUFFERED"}
    command = ("sh", "-c", shell, str(tmp_path / "output"), *FEEDMUX, *arguments)
    done = ran(*command, env=environment, timeout_s=TIMEOUT_S)
    assert done.returncode == status
    assert done.stderr.startswith(words)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize(("command", "extra"), [("serve", "feedmux[server]"), ("dev", "feedmux[embedded]")])
def test_a_missing_extra_names_the_installation(command: str, extra: str) -> None:
    done = run_without(SERVER_PACKAGES, command)
    assert done.returncode == 1
    assert f"pip install '{extra}'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["watch", "shop", "--endpoint", "localhost:1"],
        ["streams", "--operator-endpoint", "localhost:1"],
    ],
)
def test_no_server_is_one_clear_line(arguments: list[str]) -> None:
    """Also where only the client's packages are installed."""
    done = run_without(SERVER_PACKAGES, *arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    reason, hint = done.stderr.splitlines()
    assert "nothing listens on localhost:1 " in reason
    assert "feedmux dev" in hint
