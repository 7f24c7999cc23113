"""The Containerfile and the compose file, as far as they can be checked without a container engine."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from feedmux_server.config import load_config

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def steps() -> list[list[str]]:
    """The Containerfile's instructions, each with its arguments."""
    lines = (ROOT / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    return [line.split() for line in lines if line.strip() and not line.startswith("#")]


def test_the_image_is_pinned_and_runs_as_nobody_in_particular(steps: list[list[str]]) -> None:
    (base,) = [each[1] for each in steps if each[0] == "ARG"]
    assert re.fullmatch(r"PYTHON=python:\d+\.\d+\.\d+-slim-\w+", base)
    stages = [number for number, each in enumerate(steps) if each[0] == "FROM"]
    assert len(stages) == 2
    last = steps[stages[1] :]
    assert ["USER", "10001:10001"] in last
    assert not any(each[0] == "RUN" for each in last[last.index(["USER", "10001:10001"]) :])
    assert any(each[0] == "HEALTHCHECK" for each in last)
    assert ["STOPSIGNAL", "SIGTERM"] in last
    assert "pip" not in " ".join(word for each in last for word in each)


def test_what_is_copied_builds_the_package_with_the_server(steps: list[list[str]], tmp_path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text()
    copied = [path for each in steps if each[0] == "COPY" and "--from=build" not in each for path in each[1:-1]]
    for path in copied:
        assert f"!{path}\n" in ignored
        source, target = ROOT / path, tmp_path / "src" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), "./src"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    if "Could not find a version" in made.stderr or "Temporary failure in name resolution" in made.stderr:
        pytest.skip("the build backend cannot be fetched here")
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    assert {
        "feedmux/__init__.py",
        "feedmux_server/app.py",
        "feedmux_server/health_probe.py",
        "pyspark_feedmux.py",
    } <= names
    assert {"feedmux_server/store/lua/commit.lua", "feedmux/py.typed"} <= names


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return content


def test_the_compose_file_fits_together(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", []):
            assert volume.startswith("./") or volume.partition(":")[0] in compose["volumes"]
    assert all("healthcheck" in services[name] for name in services["feedmux"]["depends_on"])
    assert all(port.startswith("127.0.0.1:") for port in services["feedmux"]["ports"])
    assert "noeviction" in services["redis"]["command"]
    assert all(re.search(r":\d+\.\d+\.\d+(-\w+)?$", service["image"]) for service in services.values())
    assert (ROOT / services["feedmux"]["build"]["dockerfile"]).exists()


def test_the_compose_files_environment_is_a_configuration(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = compose["services"]["feedmux"]
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    config = load_config(None)
    hosts = {"mongodb": config.sources["main"].uri, "redis": config.redis.url}
    assert all(f"//{name}:" in address and name in compose["services"] for name, address in hosts.items())
    assert str(config.tenants_file) in {volume.split(":")[1] for volume in service["volumes"]}
    grace_s = float(service["stop_grace_period"].rstrip("s"))
    assert grace_s >= config.limits.drain_s + config.limits.drain_delay_s + 5
