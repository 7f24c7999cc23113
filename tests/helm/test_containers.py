"""The Containerfile and the compose file, as far as they can be checked without a container engine."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from feedmux_server.config.load import load_config
from tests.started import ran

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


@pytest.fixture(
    scope="module", params=["compose.yaml", "compose.valkey.yaml", "tests/deployments/sharded.compose.yaml"]
)
def any_compose(request: pytest.FixtureRequest) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / request.param).read_text())
    return content


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return content


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """What a service mounts, by its path in the container."""
    volumes = [volume.split(":") for volume in service.get("volumes", [])]
    return {target: source for source, target, *_ in volumes}


def test_each_compose_file_fits_together(any_compose: dict[str, Any]) -> None:
    compose, services = any_compose, any_compose["services"]
    for service in services.values():
        for name, awaited in service.get("depends_on", {}).items():
            assert awaited["condition"] == "service_completed_successfully" or "healthcheck" in services[name]
        for source in mounts(service).values():
            assert source in compose["volumes"] or (ROOT / source).is_dir()
        assert {config["source"] for config in service.get("configs", [])} <= set(compose.get("configs", {}))
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert re.search(r":v?\d+\.\d+\.\d+(-\w+)?$", service["image"])


def test_what_the_compose_file_starts(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert "noeviction" in services["redis"]["command"]
    valkey = yaml.safe_load((ROOT / "compose.valkey.yaml").read_text())["services"]["redis"]
    assert valkey["command"] == ["valkey-server", *services["redis"]["command"][1:]]
    assert (ROOT / services["feedmux"]["build"]["dockerfile"]).exists()


def test_the_server_waits_for_the_tenants_file_that_the_compose_file_makes(
    compose: dict[str, Any], steps: list[list[str]]
) -> None:
    keys, server = compose["services"]["keys"], compose["services"]["feedmux"]
    assert keys["image"] == server["image"]
    assert server["depends_on"]["keys"] == {"condition": "service_completed_successfully"}
    file = Path(server["environment"]["FEEDMUX_TENANTS_FILE"])
    assert keys["command"][-1] == str(file)
    folder = str(file.parent)
    assert mounts(keys)[folder] == mounts(server)[folder] == "tenants"
    # The volume takes its owner from this folder of the image.
    [made] = [each for each in steps if each[0] == "RUN" and "useradd" in each]
    assert made[made.index("install") :] == [
        "install",
        "--directory",
        "--owner",
        "feedmux",
        "--group",
        "feedmux",
        folder,
    ]


def test_monitoring_starts_only_with_its_profile(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {name for name, each in services.items() if each.get("profiles") == ["monitoring"]} == {
        "prometheus",
        "grafana",
    }
    assert not any("profiles" in services[name] for name in ("mongodb", "redis", "keys", "feedmux"))


def test_prometheus_scrapes_the_server_and_has_the_chart_s_alerts(compose: dict[str, Any], tmp_path: Path) -> None:
    services = compose["services"]
    text = compose["configs"]["prometheus"]["content"]
    configuration = yaml.safe_load(text)
    [scraped] = [
        target
        for job in configuration["scrape_configs"]
        for each in job["static_configs"]
        for target in each["targets"]
    ]
    host, _, port = scraped.partition(":")
    assert services[host]["environment"]["FEEDMUX_LISTEN__METRICS"] == f"0.0.0.0:{port}"
    [file] = services["prometheus"]["configs"]
    [pattern] = configuration["rule_files"]
    folder = Path(file["target"]).parent / Path(pattern).parent
    rules = ROOT / mounts(services["prometheus"])[str(folder)]
    assert rules.samefile(ROOT / "helm" / "feedmux" / "rules")
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (Debian's package prometheus has it)")
    (tmp_path / "prometheus.yml").write_text(text)
    shutil.copytree(rules, tmp_path / "rules")
    checked = ran(promtool, "check", "config", tmp_path / "prometheus.yml", timeout_s=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "1 rule files found" in checked.stdout


def test_grafana_gets_prometheus_and_the_chart_s_dashboard(compose: dict[str, Any]) -> None:
    services, configs = compose["services"], compose["configs"]
    targets = {config["source"]: Path(config["target"]) for config in services["grafana"]["configs"]}
    assert targets["datasource"].parent == Path("/etc/grafana/provisioning/datasources")
    assert targets["dashboards"].parent == Path("/etc/grafana/provisioning/dashboards")
    [source] = yaml.safe_load(configs["datasource"]["content"])["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    address = urlsplit(source["url"])
    assert services[str(address.hostname)]["ports"] == [f"127.0.0.1:{address.port}:{address.port}"]
    [provider] = yaml.safe_load(configs["dashboards"]["content"])["providers"]
    folder = provider["options"]["path"]
    dashboards = ROOT / mounts(services["grafana"])[folder]
    assert dashboards.samefile(ROOT / "helm" / "feedmux" / "dashboards")
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == Path(folder)
    assert (dashboards / home.name).is_file()


def test_the_compose_files_environment_is_a_configuration(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = compose["services"]["feedmux"]
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, value)
    config = load_config(None)
    hosts = {"mongodb": config.sources["main"].uri, "redis": config.redis.url}
    assert all(f"//{name}:" in address and name in compose["services"] for name, address in hosts.items())
    grace_s = float(service["stop_grace_period"].rstrip("s"))
    assert grace_s >= config.limits.drain_s + config.limits.drain_delay_s + 5
