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
    check_archive,
    check_changelog,
    check_tree,
    open_points,
    publishing,
    run,
    write_sums,
)
from tests.tables import over

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
NPM = dict.fromkeys(("LICENSE", "README.md", "dist/index.js", "dist/index.d.ts", "package.json"), "")
JAR = {
    "META-INF/LICENSE": "",
    "META-INF/MANIFEST.MF": "",
    "dev/feedmux/Session.class": "",
    "dev/feedmux/Session$1.class": "",
    "dev/feedmux/v1/ChangeFeedGrpc.class": "",
}
NEEDED = (WHEEL.keys() | NPM.keys() | JAR.keys()) - {
    "feedmux/cli/__init__.py", "feedmux_server/store/lua/commit.lua", "package.json", "META-INF/MANIFEST.MF",
    "dev/feedmux/Session$1.class",
}  # fmt: skip


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


@over(
    ("archive", "files", "junk"),
    [
        ("a.whl", WHEEL, ["tests/test_a.py", "feedmux/tests/test_a.py", "feedmux/a.pyc", "feedmux/core/.env"]),
        ("a.tgz", NPM, ["src/index.ts", "dist/session.test.js", "dist/index.js.map", "test/a.js"]),
        ("a.jar", JAR, ["dev/feedmux/SessionTest.class", "org/other/A.class", "dev/feedmux/Session.java"]),
    ],
)
def test_an_archive_has_what_it_needs_and_nothing_else(
    archive: str, files: Mapping[str, str], junk: list[str], tmp_path: Path
) -> None:
    pack = package_of if archive == "a.tgz" else wheel_of
    check_archive(pack(files, tmp_path / archive))
    for name in junk:
        with pytest.raises(NotReady, match=f"not belong in it: {name}"):
            check_archive(pack({**files, name: ""}, tmp_path / archive))
    for missing in NEEDED & files.keys():
        with pytest.raises(NotReady, match="lacks"):
            check_archive(pack({name: text for name, text in files.items() if name != missing}, tmp_path / archive))


def test_sums_are_those_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "a.whl").write_text("a")
    write_sums(tmp_path)
    assert "python/a.whl: OK" in run("sha256sum", "--check", "--strict", write_sums(tmp_path), cwd=tmp_path)
    (tmp_path / "python" / "a.whl").write_text("b")
    with pytest.raises(NotReady, match=r"python/a\.whl: FAILED"):
        run("sha256sum", "--check", "SHA256SUMS", cwd=tmp_path)


def test_the_commands_that_publish_are_those_of_the_page() -> None:
    commands = publishing("1.2.3").splitlines()
    assert "uv publish dist/python/feedmux-1.2.3*" in commands
    assert commands[-1] == "git push origin v1.2.3 clients/go/feedmux/v1.2.3"
    assert len(commands) == 9
