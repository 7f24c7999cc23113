"""The settings of a command: from its options, contexts, variables and defaults, in this order."""

import argparse
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from feedmux.cli import main
from feedmux.cli.connection import add_connection_options, connected
from feedmux.cli.failure import CliError
from feedmux.cli.operator import add_operator_options
from feedmux.cli.settings import SETTINGS, chosen, fill_in
from feedmux.errors import Unauthenticated


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the contexts are; nothing else is set."""
    for setting in SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.delenv("FEEDMUX_CONTEXT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "feedmux"


def of(*options: str) -> dict[str, Any]:
    """The settings of a command with these options, as far as they are set."""
    parser = argparse.ArgumentParser()
    add_connection_options(parser)
    args = parser.parse_args(options)
    args.complete(args)
    return {name: value for name in SETTINGS if (value := getattr(args, name, None)) is not None}


def save(*arguments: str) -> None:
    assert main(["context", "save", *arguments]) == 0


def test_without_any_setting() -> None:
    assert of() == {"endpoint": "localhost:7117", "source": "main"}


def test_an_option_comes_before_a_variable_and_that_before_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    save("one", "--endpoint", "one:1", "--api-key", "k1", "--source", "s1", "--use")
    assert of() == {"endpoint": "one:1", "api_key": "k1", "source": "s1"}
    monkeypatch.setenv("FEEDMUX_SOURCE", "s2")
    monkeypatch.setenv("FEEDMUX_API_KEY", "k2")
    assert of() == {"endpoint": "one:1", "api_key": "k2", "source": "s2"}
    assert of("--source", "s3") == {"endpoint": "one:1", "api_key": "k2", "source": "s3"}


def test_a_command_names_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    save("one", "--endpoint", "one:1", "--use")
    save("two", "--endpoint", "two:2")
    save("three", "--endpoint", "three:3")
    monkeypatch.setenv("FEEDMUX_CONTEXT", "two")
    assert of()["endpoint"] == "two:2"
    assert of("--context", "three")["endpoint"] == "three:3"


def test_a_context_that_the_command_names_comes_before_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    save("one", "--endpoint", "one:1", "--api-key", "k1")
    save("keyless", "--endpoint", "two:2")
    monkeypatch.setenv("FEEDMUX_ENDPOINT", "other:1")
    monkeypatch.setenv("FEEDMUX_API_KEY", "k2")
    assert of("--context", "one") == {"endpoint": "one:1", "api_key": "k1", "source": "main"}
    assert of("--context", "one", "--api-key", "k3")["api_key"] == "k3"
    assert of("--context", "keyless") == {"endpoint": "two:2", "api_key": "k2", "source": "main"}


def test_a_key_does_not_go_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    save("one", "--endpoint", "one:1", "--api-key", "k1", "--tls", "--use")
    assert of("--endpoint", "one:1")["api_key"] == "k1"
    assert of("--endpoint", "other:1") == {"endpoint": "other:1", "source": "main"}
    assert of("--endpoint", "other:1", "--context", "one")["api_key"] == "k1"
    save("here", "--api-key", "k2", "--use")
    assert of()["api_key"] == "k2", "for the default server"
    assert "api_key" not in of("--endpoint", "other:1")
    monkeypatch.setenv("FEEDMUX_ENDPOINT", "other:1")
    assert of() == {"endpoint": "other:1", "source": "main"}


def test_an_operator_key_does_not_go_to_another_server() -> None:
    save("one", "--operator-endpoint", "one:2", "--operator-key", "k1", "--use")
    parser = argparse.ArgumentParser()
    add_operator_options(parser)
    for options, key in (((), "k1"), (("--operator-endpoint", "other:2"), None)):
        args = parser.parse_args(options)
        fill_in(args)
        assert args.operator_key == key


def test_variables_of_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMUX_USE_TLS", "1")
    monkeypatch.setenv("FEEDMUX_CA_FILE", "ca.pem")
    assert of()["tls"] is True
    assert of()["ca_file"] == Path("ca.pem")
    monkeypatch.setenv("FEEDMUX_USE_TLS", "0")
    assert of()["tls"] is False
    monkeypatch.setenv("FEEDMUX_USE_TLS", "maybe")
    with pytest.raises(CliError, match="FEEDMUX_USE_TLS: 'maybe'"):
        of()


def test_a_variable_that_is_no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMUX_ENDPOINT", "http://here:1")
    with pytest.raises(CliError, match=r"FEEDMUX_ENDPOINT: .* is a URL; give HOST:PORT, as in here:1"):
        of()


def test_a_variable_that_was_read_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMUX_ENDPOINT", "here:1\n")
    monkeypatch.setenv("FEEDMUX_API_KEY", "key\n")
    monkeypatch.setenv("FEEDMUX_CA_FILE", "ca.pem\n")
    assert of() == {"endpoint": "here:1", "api_key": "key", "source": "main", "ca_file": Path("ca.pem")}


def test_saving_again_changes_what_is_given(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save("one", "--endpoint", "one:1", "--api-key", 'a"key')
    save("one", "--ca-file", "ca.pem", "--use")
    stored = folder / "contexts" / "one.toml"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert of() == {"endpoint": "one:1", "api_key": 'a"key', "source": "main", "ca_file": tmp_path / "ca.pem"}


def test_variables_are_stored_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMUX_API_KEY", "k1")
    save("one", "--endpoint", "one:1")
    save("two", "--endpoint", "two:2", "--environment")
    monkeypatch.delenv("FEEDMUX_API_KEY")
    assert "api_key" not in of("--context", "one")
    assert of("--context", "two")["api_key"] == "k1"


def test_files_of_a_context_are_beside_it(folder: Path) -> None:
    (folder / "contexts").mkdir(parents=True)
    (folder / "contexts" / "mine.toml").write_text('ca_file = "ca.pem"  # mine\ntls = true\n')
    assert of("--context", "mine")["ca_file"] == folder / "contexts" / "ca.pem"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("endpont = 'a:1'", "unknown setting 'endpont'"),
        ("tls = 1", "tls in .* is not true or false"),
        ("endpoint = 7117", "is not a string"),
        ("endpoint = 'nowhere'", "not HOST:PORT"),
        ("endpoint = ", "cannot be read"),
        (f"a = {'[' * 5000}", "cannot be read: maximum recursion depth"),
        (f"source = '{'x' * 70_000}'", "cannot be read: it is larger than 64 KiB"),
        ("source = '\udcff'", "cannot be read: 'utf-8' codec"),
    ],
)
def test_a_file_that_cannot_be_used(text: str, words: str, folder: Path) -> None:
    (folder / "contexts").mkdir(parents=True)
    (folder / "contexts" / "bad.toml").write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(CliError, match=words):
        of("--context", "bad")
    assert main(["context", "delete", "bad"]) == 0


def test_what_has_no_end_is_not_read(folder: Path) -> None:
    """A pipe, a device: neither as a context, nor as the name of the one in use, which every command reads."""
    (folder / "contexts").mkdir(parents=True)
    os.mkfifo(folder / "contexts" / "pipe.toml")
    (folder / "contexts" / "device.toml").symlink_to("/dev/zero")
    (folder / "context").symlink_to(folder / "contexts" / "pipe.toml")
    for name in ("pipe", "device"):
        with pytest.raises(CliError, match="cannot be read: it is not a file"):
            of("--context", name)
    assert of()["endpoint"] == "localhost:7117"


def test_a_file_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    (folder / "contexts").mkdir(parents=True)
    (folder / "contexts" / "one.toml").write_text("source = 's'\n", "utf-8-sig")
    assert of("--context", "one")["source"] == "s"


@pytest.mark.parametrize("name", ["../one", "", ".hidden", "a/b", "x" * 65])
def test_a_name_stays_within_the_folder(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "save", name, "--endpoint", "one:1"]) == 2
    assert "cannot be a context's name" in capsys.readouterr().err
    assert not folder.exists()


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id that no passwd entry has, as in a container."""

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", none)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_directory_commands_work_and_contexts_say_what_they_need(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert of("--api-key", "k") == {"endpoint": "localhost:7117", "source": "main", "api_key": "k"}
    assert main(["__complete", "bash", "watch", "--context", ""]) == 0
    for arguments in (["list"], ["show", "one"], ["use", "one"], ["save", "one", "--endpoint", "a:1"]):
        assert main(["context", *arguments]) == 1
        assert "contexts need a home directory" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_name_of_the_context_in_use_that_cannot_be_read_is_none(folder: Path, content: bytes | None) -> None:
    folder.mkdir()
    (folder / "context").mkdir() if content is None else (folder / "context").write_bytes(content)
    assert of()["endpoint"] == "localhost:7117"


def test_files_that_are_no_contexts_are_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("one", "--endpoint", "a:1")
    for name in (".toml", "two words.toml", b"\xff.toml".decode("utf-8", "surrogateescape")):
        (folder / "contexts" / name).write_text("")
    capsys.readouterr()
    assert main(["context", "list", "--json"]) == 0
    assert '"name": "one"' in (shown := capsys.readouterr().out)
    assert shown.count('"name"') == 1


def test_a_broken_context_hides_no_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "three"):
        save(name, "--endpoint", "a:1")
    (folder / "contexts" / "two.toml").write_text("endpoint = 5")
    for option, shown in (([], ("one", "three")), (["--json"], ('"name": "one"', '"name": "three"'))):
        capsys.readouterr()
        assert main(["context", "list", *option]) == 1
        output = capsys.readouterr()
        assert all(name in output.out for name in shown)
        assert "context two: endpoint in" in output.err


def test_a_folder_that_cannot_be_read_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "iterdir", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
        assert main(["context", "list"]) == 1
    assert f"{folder / 'contexts'} cannot be read: Permission denied" in capsys.readouterr().err


def test_arguments_and_variables_that_are_not_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert main(["watch", f"shop.{strange}"]) == main(["watch", "--source", strange, "shop.orders"]) == 2
    assert "the argument b'shop.caf\\xe9' is not UTF-8" in capsys.readouterr().err
    assert main(["__complete", "bash", "watch", strange]) == 0
    for variable in ("FEEDMUX_SOURCE", "FEEDMUX_CA_FILE"):
        monkeypatch.setenv(variable, strange)
        assert main(["watch", "shop.orders"]) == 2
        assert f"{variable} is not UTF-8" in capsys.readouterr().err
        monkeypatch.delenv(variable)


def test_list_and_show_hide_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "list"]) == 0
    assert "feedmux context save" in capsys.readouterr().out
    save("one", "--endpoint", "one:1", "--api-key", "fmx_secret_secret", "--use")
    save("two", "--operator-key", "fmx_secret_secret", "--tls")
    for arguments in (["list"], ["show"], ["show", "two"]):
        capsys.readouterr()
        assert main(["context", *arguments]) == 0
        assert "secret_secret" not in capsys.readouterr().out
    assert main(["context", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["in_use"] == "one"
    assert [each["name"] for each in told["contexts"]] == ["one", "two"]


def test_using_none_and_deleting(capsys: pytest.CaptureFixture[str]) -> None:
    save("one", "--endpoint", "one:1", "--use")
    assert main(["context", "use"]) == 0
    assert chosen(None) is None
    assert main(["context", "use", "one"]) == 0
    assert main(["context", "delete", "one"]) == 0
    assert chosen(None) is None
    assert main(["context", "use", "one"]) == 1
    assert "context 'one' does not exist" in capsys.readouterr().err


def test_a_mistyped_name(capsys: pytest.CaptureFixture[str]) -> None:
    save("production", "--endpoint", "one:1")
    assert main(["context", "use", "prodution"]) == 1
    assert "Did you mean production?" in capsys.readouterr().err


def test_a_context_of_another_server_is_named_where_a_key_is_missing() -> None:
    save("one", "--endpoint", "one:1", "--api-key", "k1", "--use")
    parser = argparse.ArgumentParser()
    add_connection_options(parser)
    args = parser.parse_args(["--endpoint", "other:1"])
    args.complete(args)
    with pytest.raises(CliError) as caught, connected(args):
        raise Unauthenticated("no", status="UNAUTHENTICATED", reason="UNAUTHENTICATED")
    assert "--context one" in caught.value.hint
