"""The packages of a release, built and validated as `./run release` does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from release import PARTS, UV, Build, prepared

MADE = {
    "python": {
        "python/feedmux-{}-py3-none-any.whl",
        "python/feedmux-{}.tar.gz",
        "sbom/feedmux-{}-python-server.cdx.json",
    },
    "node": {"node/feedmux-{}.tgz", "sbom/feedmux-{}-node.cdx.json"},
    "java": {
        "java/feedmux-client-{}.jar",
        "java/feedmux-client-{}.pom",
        "java/feedmux-client-{}-sources.jar",
        "java/feedmux-client-{}-javadoc.jar",
        "sbom/feedmux-{}-java.cdx.json",
    },
    "go": {"sbom/feedmux-{}-go.cdx.json"},
    "chart": {"helm/feedmux-{}.tgz"},
}


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Of the files as they are, committed or not."""
    with prepared(tmp_path / "dist") as made:
        yield made


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "chart" else [pytest.mark.full]) for name in PARTS]
)
def test_a_part_is_built_and_valid(name: str, build: Build) -> None:
    if missing := PARTS[name].missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if name == "python" and not UV.exists():
        pytest.skip("no uv in this environment")
    PARTS[name].make(build)
    made = {str(path.relative_to(build.dist)) for path in build.dist.rglob("*") if path.is_file()}
    assert made == {file.format(build.version) for file in MADE[name]}


def test_a_build_gets_what_git_knows_and_nothing_else(build: Build) -> None:
    assert (build.tree / "pyproject.toml").exists()
    assert not (build.tree / ".venv").exists()
    assert not (build.tree / "clients/node/node_modules").exists()
