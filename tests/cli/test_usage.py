"""What every command has in common: exit codes, one clear line for an error, extras that are not installed."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from feedmux.cli import main
from feedmux.cli.feed_arguments import pipeline, start
from tests.cli.conftest import FEEDMUX, TIMEOUT_S, clean_environment, run

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
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bogus"],
        ["watch", ".orders"],
        ["watch", "shop."],
        ["watch", "[shop]"],
        ["watch", "shop[.orders]"],
        ["watch", "shop", "--endpoint", "localhost"],
        ["watch", "shop", "--endpoint", "http://localhost:7117"],
        ["streams", "--operator-endpoint", "localhost:"],
        ["watch", "shop", "--pipeline", "{"],
        ["watch", "shop", "--pipeline", "{}"],
        ["watch", "shop", "--start", "sometime"],
        ["watch", "shop", "--start", '{"_id": 1}'],
        ["watch", "shop", "--limit", "0"],
        ["watch", "shop", "--raw", "--json"],
        ["watch", "--lim", "3"],
        ["subscriptions"],
        ["subscriptions", "create"],
        ["subscriptions", "create", "a", "b.c", "--on-invalidate", "explode"],
        ["subscriptions", "update", "a", "--endpoint", "localhost:1"],
        ["token"],
        ["token", "decode"],
        ["keys"],
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


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["wach", "shop"], "watch"),
        (["watch", "shop", "--pipelin", "[]"], "--pipeline"),
        (["subscriptions", "creat", "a", "b"], "create"),
        (["subscriptions", "create", "a", "b", "--full-docment", "required"], "--full-document"),
        (["subscriptions", "create", "a", "b", "--on-invalidate", "stp"], "stop"),
        (["watch", "shop", "--full-document", "updatelookup"], "updateLookup"),
    ],
)
def test_what_is_mistyped_is_suggested(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("feedmux: ")
    assert hint.strip().startswith(f"Did you mean {meant}? See `feedmux ")


def test_a_value_that_looks_like_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "shop", "--start", "-5m"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "feedmux: --start: expected one argument"
    assert hint == "  A value that begins with - follows =, as in --start=-1. See `feedmux watch --help`."


def test_nothing_is_suggested_for_what_resembles_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xyzzy"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def test_wrong_usage_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subscriptions", "get", "one", "two"]) == 2
    assert capsys.readouterr().err.endswith("unrecognized arguments: two\n  See `feedmux subscriptions get --help`.\n")


@pytest.mark.parametrize(
    ("redirection", "status", "words"), [(">&-", 0, ""), ("> /dev/full", 1, "feedmux: the output cannot be written: ")]
)
def test_an_output_that_cannot_be_written(redirection: str, status: int, words: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *FEEDMUX, "completion", "bash"],
        env=clean_environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == status
    assert done.stderr.startswith(words)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_pipeline_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    file.write_text('[{"$match": {"n": 1}}]')
    assert pipeline(f"@{file}") == file.read_text()
    file.write_bytes(b"\xef\xbb\xbf[]")  # with a byte order mark, as editors on Windows write it
    assert pipeline(f"@{file}") == "[]"


def test_a_pipeline_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "object").write_text("{}")
    (tmp_path / "comma").write_text("[{},\n]")
    for name, words in (
        ("none", "none cannot be read: No such file"),
        ("", "cannot be read: Is a directory"),
        ("latin", "latin is not UTF-8"),
        ("object", "an array"),
        ("comma", r"comma is not JSON: .* \(line 2 column 1\)$"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=words):
            pipeline(f"@{tmp_path}/{name}")


def test_a_pipeline_file_without_the_at_sign(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    file.write_text("[]")
    with pytest.raises(argparse.ArgumentTypeError, match=rf"not JSON: .*; to read the file, write @{file}"):
        pipeline(str(file))
    with pytest.raises(argparse.ArgumentTypeError, match=r"line 1 column 1\)$"):
        pipeline("x" * 5_000)


@pytest.mark.parametrize("text", ["tomorrow", "2026-11-27T25:00:00Z", "5 min", "1795799726000"])
def test_what_is_no_start_is_told_what_a_start_is(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a time \(.*Z\), how long ago \(15m\), earliest"):
        start(text)


def test_help_lists_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    for command in ("serve", "dev", "watch", "subscriptions", "streams", "token", "keys"):
        assert command in done.stdout


def test_version() -> None:
    assert run("--version").stdout.startswith("feedmux ")


@pytest.mark.parametrize(("command", "extra"), [("serve", "feedmux[server]"), ("dev", "feedmux[embedded]")])
def test_a_missing_extra_names_the_installation(command: str, extra: str) -> None:
    done = run_without(SERVER_PACKAGES, command)
    assert done.returncode == 1
    assert f"pip install '{extra}'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["watch", "--help"],
        ["subscriptions", "--help"],
        ["streams", "--help"],
        ["doctor", "--help"],
        ["keys", "new"],
        ["token", "decode", "8265A1B2C3000000012B022C0100296E5A1004"],
    ],
)
def test_the_client_commands_need_nothing_of_the_server(arguments: list[str]) -> None:
    done = run_without(SERVER_PACKAGES, *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["watch", "shop", "--endpoint", "localhost:1"],
        ["subscriptions", "list", "--endpoint", "localhost:1"],
        ["streams", "--operator-endpoint", "localhost:1"],
        ["drain", "--operator-endpoint", "localhost:1"],
        ["tenants", "usage", "--operator-endpoint", "localhost:1"],
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


def test_a_ca_file_that_is_not_there(tmp_path: object) -> None:
    done = run("watch", "shop", "--ca-file", f"{tmp_path}/nothing.pem")
    assert done.returncode == 1
    assert "nothing.pem cannot be read" in done.stderr


def test_a_key_that_cannot_be_sent_is_refused_and_not_shown() -> None:
    done = run("watch", "--endpoint", "127.0.0.1:1", "--api-key", "two words")
    assert done.returncode == 2
    assert done.stderr.startswith("feedmux: --api-key or FEEDMUX_API_KEY: ")
    assert "two words" not in done.stderr
