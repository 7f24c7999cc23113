"""`feedmux serve` and `feedmux dev`: configuration, errors, and a clean shutdown."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_embedded.workdir import WorkDir
from feedmux_server.cli.dev import _command as dev_command
from feedmux_server.config.sections import LimitsSection
from tests.cli.conftest import FEEDMUX, TIMEOUT_S, clean_environment, run, write_config
from tests.started import MARK, Started, descendants, marked, ran
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]


def test_help_names_every_option_with_its_default() -> None:
    text = run("serve", "--help").stdout
    for option, field in LimitsSection.model_fields.items():
        shown = list(field.default) if isinstance(field.default, tuple) else field.default
        assert f"{option} (default {shown})" in text
    assert "operator_key_hashes" in text
    assert "FEEDMUX_REDIS__URL" in text


def test_without_a_configuration_it_says_what_to_do() -> None:
    done = run("serve")
    assert done.returncode == 1
    assert "--print-sample-config" in done.stderr


def test_a_file_that_is_not_there() -> None:
    done = run("serve", "--config", "/nonexistent.toml")
    assert done.returncode == 1
    assert "/nonexistent.toml cannot be read" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.full)])
def test_it_drains_and_logs_json_when_piped(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path, number: signal.Signals
) -> None:
    config = write_config(tmp_path, sources={"main": {"uri": mongo.uri}}, redis={"url": redis_server.url})
    environment = {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "nowhere"}  # the SDK writes a stack when it is imported
    with start("serve", "--config", config, "--insecure-no-auth", **environment) as server:
        assert server.stderr is not None
        lines = []
        for line in server.stderr:
            lines.append(json.loads(line))
            if lines[-1]["message"] == "serving":
                break
        assert not lines[-1]["address"].endswith(":0")
        assert len([line for line in lines if "'nowhere'" in line["message"]]) == 1
        server.send_signal(number)
        assert server.wait(60) == 0
        rest = [json.loads(line) for line in server.stderr]
        assert "draining" in [line["message"] for line in rest]


def test_a_server_that_was_started_to_outlive_its_terminal_does(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path: Path
) -> None:
    config = write_config(tmp_path, sources={"main": {"uri": mongo.uri}}, redis={"url": redis_server.url})
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = start("serve", "--config", config, "--insecure-no-auth")
    finally:
        signal.signal(signal.SIGHUP, before)
    with server:
        assert server.stderr is not None
        while json.loads(server.stderr.readline())["message"] != "serving":
            pass
        status = Path(f"/proc/{server.pid}/status").read_text()
        [ignored] = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:")]
        assert ignored & 1 << signal.SIGHUP - 1
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def test_ctrl_c_while_it_still_looks_for_mongodb(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        config = write_config(tmp_path, sources={"main": {"uri": f"mongodb://127.0.0.1:{silent.getsockname()[1]}/"}})
        with start("serve", "--config", config, "--insecure-no-auth") as server:
            connection, _ = silent.accept()
            connection.close()
            server.send_signal(signal.SIGINT)
            server.wait(60)
            assert server.stderr is not None
            assert "Traceback" not in server.stderr.read()


def test_dev_from_start_to_ctrl_c(tmp_path: Path) -> None:
    mark = f"dev-{os.getpid()}"
    folder = tmp_path / "kept"
    arguments = ("dev", "--port", "0", "--json", "--data-dir", str(folder))
    with start(*arguments, "--workload", "--rate", "50", **{MARK: mark}) as dev:
        assert dev.stdout is not None
        told = json.loads(dev.stdout.readline())
        settings = {"FEEDMUX_ENDPOINT": told["endpoint"], "FEEDMUX_API_KEY": told["api_key"]}
        environment = clean_environment() | settings
        seen = run("watch", "shop.orders", "--limit", "10", environment=environment)
        assert len(seen.stdout.splitlines()) == 10
        streams = run(
            "streams", "--operator-endpoint", told["operator_endpoint"], "--operator-key", told["operator_key"],
            environment=environment,
        )  # fmt: skip
        assert "main:shop.orders" in streams.stdout
        made = run("subscriptions", "create", "kept", "shop.orders", environment=environment)
        assert made.returncode == 0
        letters = run("dead-letters", "list", "kept", environment=environment)
        assert letters.returncode == 0, letters.stderr
        again = run(*arguments)
        assert again.returncode == 1
        assert "another `feedmux dev`" in again.stderr
        beside = run("dev", "--port", told["endpoint"].rpartition(":")[2])
        assert beside.returncode == 1
        assert "is in use, perhaps by another `feedmux dev`" in beside.stderr
        assert "--port 0" in beside.stderr
        started = descendants(dev.pid)
        dev.send_signal(signal.SIGINT)
        assert dev.wait(60) == 0
    assert marked(mark) == []
    assert running(started) == []

    with start(*arguments, **{MARK: mark}) as dev:
        assert dev.stdout is not None
        later = json.loads(dev.stdout.readline())
        assert later["api_key"] == told["api_key"]
        environment |= {"FEEDMUX_ENDPOINT": later["endpoint"]}
        assert run("subscriptions", "get", "kept", environment=environment).returncode == 0
        with MongoClient[dict[str, Any]](later["mongodb"]) as client:
            assert client.shop.orders.count_documents({}) > 0
        started = descendants(dev.pid)
        dev.send_signal(signal.SIGTERM)
        assert dev.wait(60) == 0
    assert marked(mark) == []
    assert running(started) == []


def test_dev_does_not_use_the_servers_of_another_one(tmp_path: Path) -> None:
    """The folder is a copy, so its ports are those of the first."""
    first, copy = tmp_path / "first", tmp_path / "copy"
    with start("dev", "--port", "0", "--json", "--data-dir", str(first)) as dev:
        assert dev.stdout is not None
        assert dev.stdout.readline()
        copy.mkdir()
        shutil.copy2(first / "dev.json", copy)
        beside = run("dev", "--port", "0", "--data-dir", str(copy))
        assert beside.returncode == 1
        assert "another program listens on its port" in beside.stderr


def test_what_a_killed_dev_leaves_is_removed_by_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start("dev", "--port", "0", "--json", TMPDIR=str(tmp_path)) as dev:
        assert dev.stdout is not None
        assert dev.stdout.readline()
        started = descendants(dev.pid)
        dev.kill()
    wait_until(lambda: not running(started), lambda: running(started), guard_s=120)
    assert list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    WorkDir("test").remove()
    assert not list(tmp_path.iterdir())


def test_dev_names_what_it_cannot_use(tmp_path: Path) -> None:
    (tmp_path / "mongodb").touch()
    done = run("dev", "--port", "0", "--data-dir", str(tmp_path))
    assert (done.returncode, "mongodb/node0 cannot be used: Not a directory" in done.stderr) == (1, True)


def test_dev_whose_output_cannot_be_written() -> None:
    with Path("/dev/full").open("wb") as full:
        command = (*FEEDMUX, "dev", "--port", "0", "--json")
        done = ran(*command, env=clean_environment(), stdout=full, timeout_s=TIMEOUT_S)
    assert done.returncode == 1
    assert "the output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", ["mongod", "redis-server"])
def test_dev_interrupted_while_it_starts(program: str) -> None:
    mark = f"dev-{os.getpid()}-{program}"
    with start("dev", "--port", "0", **{MARK: mark}) as dev:
        stderr = dev.stderr
        assert stderr is not None
        seen: dict[int, str] = {}

        def has_started() -> bool:
            assert dev.poll() is None, stderr.read()
            seen.update(descendants(dev.pid))
            return any(program in command for command in seen.values())

        def has_ended() -> bool:
            seen.update(descendants(dev.pid))
            return dev.poll() is not None

        # Without a pause, so that no process comes and goes unseen.
        wait_until(has_started, lambda: seen, guard_s=120, every_s=0)
        dev.send_signal(signal.SIGINT)
        wait_until(has_ended, lambda: seen, guard_s=120, every_s=0)
        assert dev.returncode in (0, 130)
        assert "Traceback" not in stderr.read()
    assert marked(mark) == []
    assert running(seen) == []


def start(*arguments: str, **environment: str) -> Started[str]:
    return Started(
        [*FEEDMUX, *arguments],
        env=clean_environment() | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def running(processes: Iterable[int]) -> list[str]:
    """The commands of those of these processes that have not ended."""
    return [command for process in processes if (command := command_of(process))]


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_run_dev_has_the_path_of_another_terminal(tmp_path: Path) -> None:
    """So the commands that it prints name the program as that terminal finds it."""
    for name in ("run", "pyproject.toml", "constraints.txt"):
        shutil.copy2(REPOSITORY / name, tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "feedmux").write_text("#!/bin/sh\ncommand -v feedmux || echo none\n")
    (programs / "feedmux").chmod(0o755)
    stamp = subprocess.check_output(
        ["sh", "-c", "(cat pyproject.toml constraints.txt && pwd) | cksum"], cwd=tmp_path, text=True
    )
    (tmp_path / ".venv" / ".installed-embedded").write_text(stamp)
    path = "/usr/bin:/bin"
    told = subprocess.check_output([tmp_path / "run", "dev"], env={"PATH": path}, text=True, timeout=60)
    assert told == "none\n"


def test_a_command_for_another_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / ".venv" / "bin" / "feedmux"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert dev_command() == ".venv/bin/feedmux"
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin")
    assert dev_command() == "feedmux"
