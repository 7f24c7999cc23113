"""What `./run release` rejects before and after it builds. tests/packaging/test_release.py builds."""

import io
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from release import (
    NotReady,
    check_changelog,
    check_jar,
    check_npm_package,
    check_pom,
    check_tree,
    check_wheel,
    open_points,
    publishing,
    run,
    write_sums,
)

REPOSITORY = Path(__file__).parents[2]
WHEEL = {
    "feedmux/py.typed": "",
    "feedmux/cli/__init__.py": "",
    "feedmux_server/py.typed": "",
    "feedmux_server/store/lua/commit.lua": "",
    "feedmux_embedded/py.typed": "",
    "feedmux_spark/py.typed": "",
    "pyspark_feedmux.py": "",
    "feedmux-1.2.3.dist-info/METADATA": "Name: feedmux\n\nA description.\n",
    "feedmux-1.2.3.dist-info/licenses/LICENSE": "",
    "feedmux-1.2.3.dist-info/entry_points.txt": "",
}
NPM = {
    "LICENSE": "",
    "README.md": "",
    "dist/index.js": "",
    "dist/index.d.ts": "",
    "package.json": """{
        "version": "1.2.3", "license": "Apache-2.0", "main": "./dist/index.js", "types": "./dist/index.d.ts",
        "exports": {".": {"types": "./dist/index.d.ts", "default": "./dist/index.js"}}
    }""",
}
JAR = {
    "META-INF/LICENSE": "",
    "META-INF/MANIFEST.MF": "",
    "dev/feedmux/Session.class": "",
    "dev/feedmux/Session$1.class": "",
    "dev/feedmux/v1/ChangeFeedGrpc.class": "",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small one of its own, with everything in a commit."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 (2026-12-01)\n\n- News.\n\n## 1.2.2\n\n- Old.\n")
    (tmp_path / "README.md").write_text("# It\n")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "all")):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *command], cwd=tmp_path, check=True
        )
    return tmp_path


def wheel_of(files: Mapping[str, str], path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        for name, text in files.items():
            opened.writestr(name, text)
    return path


def package_of(files: Mapping[str, str], path: Path) -> Path:
    with tarfile.open(path, "w:gz") as opened:
        for name, text in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text.encode())
            opened.addfile(member, io.BytesIO(text.encode()))
    return path


def test_a_tree_with_changes_is_rejected(repository: Path) -> None:
    check_tree(repository)
    (repository / "new.txt").write_text("")
    with pytest.raises(NotReady, match=r"new\.txt(.|\n)*--allow-dirty"):
        check_tree(repository)


@pytest.mark.parametrize("text", ["## 1.2.2\n\n- Old.\n", "## 1.2.3\n\n## 1.2.2\n\n- Old.\n", "## 1.2.30\n\n- News.\n"])
def test_a_changelog_without_the_version_is_rejected(text: str, repository: Path) -> None:
    check_changelog(repository)
    (repository / "CHANGELOG.md").write_text(text)
    with pytest.raises(NotReady, match=r"nothing about 1\.2\.3"):
        check_changelog(repository)


def test_open_points_are_named(repository: Path) -> None:
    assert open_points(repository) == []
    (repository / "CHANGELOG.md").write_text("## 1.2.3 (unreleased)\n\n- News.\n")
    (repository / "README.md").write_text("# It\n\nUntil the first release, from a checkout:\n")
    changelog, pages = open_points(repository)
    assert "unreleased" in changelog
    assert "README.md" in pages


def test_a_wheel_is_what_it_should_be(tmp_path: Path) -> None:
    check_wheel(wheel_of(WHEEL, tmp_path / "a.whl"), "1.2.3")


@pytest.mark.parametrize("missing", [name for name in WHEEL if "__init__" not in name and not name.endswith(".lua")])
def test_a_wheel_that_lacks_a_file_is_rejected(missing: str, tmp_path: Path) -> None:
    files = {name: text for name, text in WHEEL.items() if name != missing}
    with pytest.raises(NotReady, match=f"lacks {missing}"):
        check_wheel(wheel_of(files, tmp_path / "a.whl"), "1.2.3")


@pytest.mark.parametrize("junk", ["tests/test_a.py", "feedmux/tests/test_a.py", "feedmux/a.pyc", "feedmux/core/.env"])
def test_a_wheel_with_another_file_is_rejected(junk: str, tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=f"not belong in it: {junk}"):
        check_wheel(wheel_of({**WHEEL, junk: ""}, tmp_path / "a.whl"), "1.2.3")


def test_a_wheel_without_a_description_is_rejected(tmp_path: Path) -> None:
    files = {**WHEEL, "feedmux-1.2.3.dist-info/METADATA": "Name: feedmux\n\n"}
    with pytest.raises(NotReady, match="no description"):
        check_wheel(wheel_of(files, tmp_path / "a.whl"), "1.2.3")


def test_an_npm_package_is_what_it_should_be(tmp_path: Path) -> None:
    check_npm_package(package_of(NPM, tmp_path / "a.tgz"), "1.2.3")
    with pytest.raises(NotReady, match=r"version 1\.2\.3, licence Apache-2\.0"):
        check_npm_package(tmp_path / "a.tgz", "1.2.4")
    for missing in ("LICENSE", "README.md", "dist/index.js", "dist/index.d.ts"):
        files = {name: text for name, text in NPM.items() if name != missing}
        with pytest.raises(NotReady, match=f"lacks {missing}"):
            check_npm_package(package_of(files, tmp_path / "a.tgz"), "1.2.3")
    for junk in ("src/index.ts", "dist/session.test.js", "dist/index.js.map", "test/a.js"):
        with pytest.raises(NotReady, match=f"not belong in it: {junk}"):
            check_npm_package(package_of({**NPM, junk: ""}, tmp_path / "a.tgz"), "1.2.3")


def test_a_jar_is_what_it_should_be(tmp_path: Path) -> None:
    check_jar(wheel_of(JAR, tmp_path / "a.jar"))
    for missing in ("META-INF/LICENSE", "dev/feedmux/Session.class"):
        with pytest.raises(NotReady, match=f"lacks {missing}"):
            check_jar(wheel_of({name: text for name, text in JAR.items() if name != missing}, tmp_path / "a.jar"))
    for junk in ("dev/feedmux/SessionTest.class", "org/other/A.class", "dev/feedmux/Session.java"):
        with pytest.raises(NotReady, match="not belong in it"):
            check_jar(wheel_of({**JAR, junk: ""}, tmp_path / "a.jar"))


def test_a_pom_without_what_maven_central_requires_is_rejected(tmp_path: Path) -> None:
    pom = REPOSITORY / "clients/java/pom.xml"
    check_pom(pom)
    (tmp_path / "pom.xml").write_text(pom.read_text().replace("licenses>", "others>").replace("scm>", "none>"))
    with pytest.raises(NotReady, match="licenses/license/url, scm/url"):
        check_pom(tmp_path / "pom.xml")


def test_sums_are_those_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "a.whl").write_text("a")
    write_sums(tmp_path)
    assert "python/a.whl: OK" in run("sha256sum", "--check", "--strict", write_sums(tmp_path), cwd=tmp_path)
    (tmp_path / "python" / "a.whl").write_text("b")
    with pytest.raises(NotReady, match=r"python/a\.whl: FAILED"):
        run("sha256sum", "--check", "SHA256SUMS", cwd=tmp_path)


def test_the_commands_that_publish_are_those_of_the_page() -> None:
    """docs/releasing.md names each with a version that stands for any."""
    page = (REPOSITORY / "docs/releasing.md").read_text()
    for line in publishing("X.Y.Z", Path("dist")).splitlines():
        assert line.startswith("#") or line in page
