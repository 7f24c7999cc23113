"""Every benchmark runs, at sizes where its figures mean nothing, and prints what `contract.md` says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import NAMES
from bench.clients import LANGUAGES
from bench.snapshot_debezium import DEBEZIUM

REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 600.0


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


# `backpressure` takes a minute however small; tests/spark/test_backpressure.py shows the same.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "single" else pytest.mark.full)
        for name in NAMES
        if name != "backpressure"
    ],
)
def test_a_benchmark_ends_with_its_result(name: str) -> None:
    if name == "clients" and all(language.missing for language in LANGUAGES.values()):
        pytest.skip("none of the other languages' tools is installed")
    if name == "snapshot-debezium" and DEBEZIUM.missing:
        pytest.skip("no Java or Maven")
    done = bench(name, "--tiny", "--runs", "1", "--json")
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    result = json.loads(last)
    assert set(result) == {"name", "figures", "alternative", "ratio", "target", "met"}
    assert result["name"] == name
    assert result["figures"]
    assert result["alternative"]
    assert result["ratio"] > 0
    for side in ("figures", "alternative"):
        assert all(isinstance(value, int | float) for value in result[side].values()), side
    for target in result["target"]:
        assert set(target) - {"at_least", "at_most"} == {"figure", "value", "met"}
    assert result["met"] == all(target["met"] for target in result["target"])
    assert any(line.startswith(f"{name}:") for line in table)


def test_what_there_is_can_be_listed() -> None:
    done = bench("list")
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(NAMES)


def test_an_unknown_name_is_wrong_usage() -> None:
    assert bench("speed").returncode == 2
