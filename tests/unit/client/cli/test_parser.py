"""Errors of usage: which command, and what was meant."""

import pytest

from feedmux.cli import main


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
