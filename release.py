"""`./run release`: checks, builds and validates the parts of a release, and prints the commands that publish it.

It uploads nothing. docs/releasing.md describes a release.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent
UV: Final = Path(sys.executable).parent / "uv"
SBOM_PYTHON: Final = "cyclonedx-bom==7.5.0"
SBOM_GO: Final = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"
TWINE: Final = "twine==7.0.0"
OUTPUT_LINES: Final = 40
"""How many of the last lines of a failed command are shown."""


class NotReady(Exception):
    """The release is not ready; the message says what is wrong, and the next step."""


# --- version -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file repeats the version of pyproject.toml."""

    file: str
    before: str
    """Regular expression for the text before the version. It matches once in the file."""
    after: str = r'"'

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(rf"({self.before})([^\s\"<]+)({self.after})", re.MULTILINE)


SOURCE: Final = Place("pyproject.toml", r'^version = "')
COPIES: Final = (
    Place("clients/node/package.json", r'^  "version": "'),
    Place("clients/node/package-lock.json", r'\A\{\s+"name": "feedmux",\s+"version": "'),
    Place("clients/node/package-lock.json", r'^    "": \{\s+"name": "feedmux",\s+"version": "'),
    Place("clients/node/src/version.ts", r'VERSION = "'),
    Place("clients/go/feedmux/client.go", r'^const Version = "'),
    Place("clients/java/pom.xml", r"<artifactId>feedmux-client</artifactId>\s+<version>", "</version>"),
    Place("clients/java/README.md", r"<artifactId>feedmux-client</artifactId>\s+<version>", "</version>"),
    Place("clients/java/src/test/java/dev/feedmux/conformance/Commands.java", r'"java", "version", "'),
    Place("helm/feedmux/Chart.yaml", r"^version: ", "$"),
    Place("helm/feedmux/Chart.yaml", r'^appVersion: "'),
    Place("Containerfile", r"-t feedmux:", r" \.$"),
    Place("Containerfile", r'^ +org\.opencontainers\.image\.version="'),
    Place("compose.yaml", r"^  image: feedmux:", "$"),
)
VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
POM_TIME: Final = re.compile(r"(<project\.build\.outputTimestamp>)[^<]*(<)")


def version_in(place: Place, root: Path = REPOSITORY) -> str:
    """Return the version in a file."""
    found = place.pattern.findall((root / place.file).read_text())
    if len(found) != 1:
        raise NotReady(
            f"{place.file} contains {len(found)} versions after {place.before!r}, not 1. Fix COPIES in release.py."
        )
    return str(found[0][1])


def project_version(root: Path = REPOSITORY) -> str:
    """Return the version of pyproject.toml, which applies to all packages."""
    return str(tomllib.loads((root / SOURCE.file).read_text())["project"]["version"])


def differences(root: Path = REPOSITORY) -> Mapping[str, str]:
    """Return the files that name another version than pyproject.toml, with that version."""
    wanted = project_version(root)
    found = [(place.file, version_in(place, root)) for place in COPIES]
    return {file: version for file, version in found if version != wanted}


def set_version(version: str, root: Path = REPOSITORY) -> list[str]:
    """Write the version into every file that names it, and today's date into pom.xml, for the entries of its
    archives."""
    if not VERSION.fullmatch(version):
        raise NotReady(
            f"{version!r} is not of the form 1.2.3, the one that pip, npm, Go, Maven and Helm all read alike."
        )
    for place in (SOURCE, *COPIES):
        version_in(place, root)
    for place in (SOURCE, *COPIES):
        path = root / place.file
        path.write_text(place.pattern.sub(rf"\g<1>{version}\g<3>", path.read_text()))
    pom = root / "clients/java/pom.xml"
    today = datetime.now(UTC).strftime("%Y-%m-%dT00:00:00Z")
    pom.write_text(POM_TIME.sub(rf"\g<1>{today}\g<2>", pom.read_text()))
    return sorted({place.file for place in (SOURCE, *COPIES)})


# --- commands ------------------------------------------------------------------------------------------------------


def run(*command: str | Path, cwd: Path = REPOSITORY, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output. If the command fails, the error shows the end of that output."""
    # Settings for this Python must not reach the interpreters of new environments.
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=outside | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-OUTPUT_LINES:])
        raise NotReady(f"`{shlex.join(map(str, command))}` failed (exit code {done.returncode}):\n{end}")
    return done.stdout


# --- what is checked before anything is built ------------------------------------------------------------------------


def check_tree(root: Path = REPOSITORY) -> None:
    """Reject a work tree that differs from its last commit."""
    if changed := run("git", "status", "--porcelain", cwd=root):
        raise NotReady(
            f"The work tree has changes that are in no commit:\n{changed}"
            "Commit or remove them, or pass --allow-dirty for a trial."
        )


def check_versions(root: Path = REPOSITORY) -> None:
    """Reject files that name another version than pyproject.toml."""
    version = project_version(root)
    if different := differences(root):
        named = ", ".join(f"{file} ({other})" for file, other in different.items())
        raise NotReady(
            f"pyproject.toml has version {version}, but not {named}. Run `./run release set-version {version}`."
        )


def check_changelog(root: Path = REPOSITORY) -> None:
    """Reject a changelog that lacks this version, or has an empty section for it."""
    version = project_version(root)
    found = re.search(
        rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)",
        (root / "CHANGELOG.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    if found is None or not found[1].strip():
        raise NotReady(f"CHANGELOG.md says nothing about {version}. Add a section `## {version}` with its changes.")


def open_points(root: Path = REPOSITORY) -> list[str]:
    """Return what may be unfinished while a release is tried out, but not when it is published."""
    version = project_version(root)
    points = []
    if re.search(rf"^## {re.escape(version)} \(unreleased\)", (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        points.append(f"CHANGELOG.md calls {version} unreleased: put the date there, `## {version} (YYYY-MM-DD)`.")
    pages = sorted(run("git", "ls-files", "*.md", cwd=root).split())
    early = [page for page in pages if re.search("^Until the first release", (root / page).read_text(), re.MULTILINE)]
    if early:
        points.append(f"These pages say how to install before the first release, remove that: {', '.join(early)}.")
    return points


# --- building --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Build:
    """One run: its version, its sources and its output folder."""

    version: str
    tree: Path
    """A copy of the files known to git: no other file gets into a package, and no build changes the work tree."""
    dist: Path
    scratch: Path
    epoch: int
    """The time of the last commit, for archives that contain times."""

    def folder(self, name: str) -> Path:
        made = self.dist / name
        made.mkdir(parents=True, exist_ok=True)
        return made

    def sbom(self, name: str) -> Path:
        return self.folder("sbom") / f"feedmux-{self.version}-{name}.cdx.json"


@contextmanager
def prepared(dist: Path, root: Path = REPOSITORY) -> Iterator[Build]:
    """Provide a Build with a fresh copy of the tree, after removing what an earlier run left in `dist`."""
    for name in (*(part.folder for part in PARTS.values() if part.folder), "sbom"):
        shutil.rmtree(dist / name, ignore_errors=True)
    (dist / SUMS).unlink(missing_ok=True)
    epoch = int(run("git", "log", "-1", "--format=%ct", cwd=root))
    with tempfile.TemporaryDirectory(prefix="feedmux-release-") as temporary:
        tree, scratch = Path(temporary) / "tree", Path(temporary) / "scratch"
        scratch.mkdir()
        for file in run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=root).split("\0"):
            if file and (root / file).is_file():
                (tree / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / file, tree / file)
                os.utime(tree / file, (epoch, epoch))
        yield Build(project_version(root), tree, dist.resolve(), scratch, epoch)


def python(build: Build) -> None:
    """Build and check the wheel and the sdist."""
    out, version = build.folder("python"), build.version
    source, wheel = out / f"feedmux-{version}.tar.gz", out / f"feedmux-{version}-py3-none-any.whl"
    clock = {"SOURCE_DATE_EPOCH": str(build.epoch)}
    make = (UV, "build", "--quiet", "--out-dir")
    run(*make, out, "--sdist", "--wheel", "--no-create-gitignore", build.tree, environment=clock)
    check_archive(wheel)
    again = build.scratch / "from-sdist"
    run(*make, again, "--wheel", source, environment=clock)
    if (again / wheel.name).read_bytes() != wheel.read_bytes():
        raise NotReady(f"{source.name} builds another wheel than the repository. Compare tool.hatch in pyproject.toml.")
    run(UV, "tool", "run", "--quiet", "--from", TWINE, "twine", "check", "--strict", wheel, source)
    fresh = build.scratch / "venv"
    run(UV, "venv", "--quiet", "--python", sys.executable, fresh)
    install = (UV, "pip", "install", "--quiet", "--python", fresh / "bin/python")
    run(*install, wheel)
    told = run(fresh / "bin/feedmux", "--version", cwd=build.scratch).strip()
    if told != f"feedmux {version}":
        raise NotReady(f"The installed wheel's `feedmux --version` says {told!r}. Expected feedmux {version}.")
    # The extras installed in the image.
    run(*install, "--constraint", build.tree / "constraints.txt", f"{wheel}[server]")
    run(
        *(UV, "tool", "run", "--quiet", "--from", SBOM_PYTHON, "cyclonedx-py", "environment", "--output-reproducible"),
        *("--pyproject", build.tree / "pyproject.toml", "--output-file", build.sbom("python-server"), fresh),
        environment=clock,
    )


_INFO: Final = r"feedmux-[\d.]+\.dist-info"
_PACKAGES: Final = ("feedmux", "feedmux_server", "feedmux_embedded", "feedmux_spark")
_CLASS: Final = r"dev/feedmux/((errors|v1)/)?(?!\w*Test\b)[\w$-]+"
ARCHIVES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "-javadoc.jar": ((r"index\.html", r"dev\.feedmux\.client/dev/feedmux/Session\.html"), r"(?s).+"),
    "-sources.jar": (
        (r"dev/feedmux/Session\.java", r"dev/feedmux/v1/ChangeFeedGrpc\.java", "META-INF/LICENSE"),
        rf"{_CLASS}\.java|META-INF/(LICENSE|MANIFEST\.MF|maven/.+)",
    ),
    ".jar": (
        (r"dev/feedmux/Session\.class", r"dev/feedmux/v1/ChangeFeedGrpc\.class", "META-INF/LICENSE"),
        rf"{_CLASS}\.class|META-INF/(LICENSE|MANIFEST\.MF|maven/.+)",
    ),
    ".whl": (
        (*(rf"{each}/py\.typed" for each in _PACKAGES), r"pyspark_feedmux\.py",
         *(rf"{_INFO}/{each}" for each in ("METADATA", "licenses/LICENSE", r"entry_points\.txt"))),
        rf"({'|'.join(_PACKAGES)})/(?!(.*/)?tests?/)(.+\.(pyi?|lua)|py\.typed)|pyspark_feedmux\.py|{_INFO}/[\w./]+",
    ),
    ".tgz": (
        ("LICENSE", r"README\.md", *(rf"dist/index\.{each}" for each in ("js", r"d\.ts"))),
        r"LICENSE|README\.md|package\.json|dist/(?!.*test).+\.(d\.ts|js)",
    ),
}  # fmt: skip
"""By the end of an archive's name: patterns of the files that it needs, and of those that it may have."""


def check_archive(archive: Path) -> None:
    """Reject an archive that lacks a file, or has one that does not belong in it."""
    if archive.suffix == ".tgz":
        with tarfile.open(archive) as opened:
            names = [member.name.removeprefix("package/") for member in opened if member.isfile()]
    else:
        with zipfile.ZipFile(archive) as packed:
            names = [name for name in packed.namelist() if not name.endswith("/")]
    needed, allowed = next(rule for ending, rule in ARCHIVES.items() if archive.name.endswith(ending))
    if missing := [each for each in needed if not any(re.fullmatch(each, name) for name in names)]:
        raise NotReady(f"{archive.name} lacks {', '.join(missing)}.")
    if junk := sorted(name for name in names if not re.fullmatch(allowed, name)):
        raise NotReady(f"{archive.name} has files that do not belong in it: {', '.join(junk)}.")


def node(build: Build) -> None:
    """Build and check the npm package."""
    out, version, source = build.folder("node"), build.version, build.tree / "clients/node"
    run("npm", "ci", "--no-audit", "--no-fund", cwd=source)
    run("npm", "pack", "--pack-destination", out, cwd=source)
    package = out / f"feedmux-{version}.tgz"
    check_archive(package)
    user = build.scratch / "npm"
    user.mkdir()
    (user / "package.json").write_text('{"private": true}\n')
    run("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", package, cwd=user)
    for code in ("import('feedmux').then((it) => console.log(it.VERSION))", "console.log(require('feedmux').VERSION)"):
        told = run("node", "--no-warnings", "--eval", code, cwd=user).strip()
        if told != version:
            raise NotReady(f"node: `{code}` in a project with {package.name} says {told!r}. Expected {version}.")
    bom = run("npm", "sbom", "--sbom-format", "cyclonedx", "--omit", "dev", cwd=source)
    build.sbom("node").write_text(json.dumps(json.loads(bom), indent=2) + "\n")


def java(build: Build) -> None:
    """Build and check Maven's jars, with sources and documentation."""
    out, version, source = build.folder("java"), build.version, build.tree / "clients/java"
    run("mvn", "-q", "-B", "-ntp", "-P", "release", "-DskipTests", "package", cwd=source)
    for ending in (".jar", "-sources.jar", "-javadoc.jar"):
        made = source / f"target/feedmux-client-{version}{ending}"
        shutil.copy(made, out)
        check_archive(out / made.name)
    shutil.copy(source / "pom.xml", out / f"feedmux-client-{version}.pom")
    shutil.copy(source / "target/sbom.json", build.sbom("java"))


def go(build: Build) -> None:
    """Check what users of the Go module will get, and write an SBOM.

    A tag publishes the module, so nothing is built.
    """
    source = build.tree / GO_MODULE
    module = run("go", "list", "-m", cwd=source).strip()
    package = run("go", "list", "-f", "{{.Name}}", ".", cwd=source).strip()
    if module.rpartition("/")[2] != package or not module.endswith(GO_MODULE):
        raise NotReady(f"go.mod names {module}: expected a path that ends in {GO_MODULE}, with package {package}.")
    if not (source / "LICENSE").exists():
        raise NotReady(f"{GO_MODULE} has no LICENSE, without which pkg.go.dev shows no documentation. Copy it there.")
    run("go", "build", "./...", cwd=source)
    user = build.scratch / "go"
    user.mkdir()
    shutil.copy(source / "examples/orders/main.go", user)
    run("go", "mod", "init", "example.com/user", cwd=user)
    run("go", "mod", "edit", f"-require={module}@v{build.version}", f"-replace={module}={source}", cwd=user)
    run("go", "mod", "tidy", cwd=user)
    run("go", "build", "-o", build.scratch / "go-program", ".", cwd=user)
    target = build.sbom("go")
    options = ("-type", "library", "-licenses", "-short-purls", "-json", "-output", target)
    run("go", "run", SBOM_GO, "mod", *options, source, cwd=user)
    # The SBOM tool takes the version from a tag, which does not exist yet.
    told = json.loads(target.read_text())
    told["metadata"]["component"]["version"] = f"v{build.version}"
    target.write_text(json.dumps(told, indent=2) + "\n")


def chart(build: Build) -> None:
    """Check and package the chart, with Helm's own code."""
    from helm_python import lint, package  # This import loads Helm's library.

    out, source = build.folder("helm"), build.tree / "helm/feedmux"
    if errors := lint(source, CHART_VALUES, strict=True)["errors"]:
        raise NotReady(f"Helm finds errors in helm/feedmux: {'; '.join(errors)}")
    package(source, destination=out)


@dataclass(frozen=True, slots=True)
class Part:
    """The packages for one registry."""

    title: str
    make: Callable[[Build], None]
    tools: tuple[str, ...] = ()
    folder: str = ""
    """The part's folder in dist/."""

    @property
    def missing(self) -> list[str]:
        """The needed tools that this machine does not have."""
        return [tool for tool in self.tools if shutil.which(tool) is None]


CHART_VALUES: Final = {
    "sources": {"main": {"uriSecret": {"name": "mongodb", "key": "uri"}}},
    "redis": {"url": "redis://redis:6379/0"},
    "tenants": {"existingConfigMap": "feedmux-tenants"},
}
"""The chart's values that have no default, as the chart's README sets them."""
GO_MODULE: Final = "clients/go/feedmux"
SUMS: Final = "SHA256SUMS"
PARTS: Final = {
    "python": Part("Python: wheel and sdist", python, folder="python"),
    "node": Part("Node.js: npm package", node, ("node", "npm"), "node"),
    "java": Part("Java: jar, sources, javadoc", java, ("java", "mvn"), "java"),
    "go": Part("Go: module", go, ("go",)),
    "chart": Part("Helm: chart", chart, folder="helm"),
}


def write_sums(dist: Path) -> Path:
    """Write the SHA-256 of every file, in the format of `sha256sum --check`."""
    files = sorted(path for path in dist.rglob("*") if path.is_file() and path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(dist)}\n" for path in files]
    (dist / SUMS).write_text("".join(lines))
    return dist / SUMS


def publishing(version: str) -> str:
    """Return the commands that publish a release, from docs/releasing.md."""
    page = (REPOSITORY / "docs/releasing.md").read_text()
    blocks: list[str] = re.findall(r"^ *```sh\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    (commands,) = (block for block in blocks if "git push" in block)
    return textwrap.dedent(commands).replace("X.Y.Z", version)


# --- command line --------------------------------------------------------------------------------------------------


def release(parts: list[str], dist: Path, *, allow_dirty: bool, final: bool) -> None:
    """Check, build and validate a release, and print the remaining steps."""
    missing = {name: PARTS[name].missing for name in parts if PARTS[name].missing}
    if missing:
        tools = ", ".join(sorted({tool for each in missing.values() for tool in each}))
        rest = " ".join(name for name in parts if name not in missing)
        raise NotReady(f"Not installed: {tools}. Install them, or try the other parts: --only {rest or 'PART'}")
    version = project_version()
    if not allow_dirty:
        check_tree()
    check_versions()
    check_changelog()
    points = open_points()
    if final and points:
        raise NotReady("\n".join(["Not final yet.", *points]))
    with prepared(dist) as build:
        for name in parts:
            print(PARTS[name].title, flush=True)
            PARTS[name].make(build)
    sums = write_sums(dist)
    print(f"\nIn {dist}, and built as it will be published:\n\n{sums.read_text()}")
    print("The SBOMs cover what pip, npm, Maven and Go install; Debian's packages in the image are in none of them.\n")
    for point in points:
        print(f"Before publishing: {point}")
    if allow_dirty or len(parts) < len(PARTS):
        print("This was a trial. Run `./run release` on a clean work tree for the commands that publish.")
    else:
        print(f"Nothing was uploaded. What publishes {version} (docs/releasing.md):\n\n{publishing(version)}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run release",
        usage="%(prog)s [--only PART …] [--final] [--allow-dirty] [--dist FOLDER]\n       %(prog)s set-version X.Y.Z",
        description="Checks, builds and validates a release in dist/, and prints the commands that publish it. "
        "It uploads nothing. docs/releasing.md describes a release.",
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
                        help=f"build these parts alone, for a trial: {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--final", action="store_true",
                        help="fail if something must still be done before publishing")  # fmt: skip
    parser.add_argument("--allow-dirty", action="store_true",
                        help="build the files as they are, committed or not, for a trial")  # fmt: skip
    parser.add_argument("--dist", type=Path, default=Path("dist"), metavar="FOLDER",
                        help="where the files go; dist/ by default")  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", prog="./run release")
    new = commands.add_parser("set-version", help="write a version into every file that names it")
    new.add_argument("version", metavar="X.Y.Z")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    try:
        if args.command == "set-version":
            print(f"{args.version} stands in: {', '.join(set_version(args.version))}. Next: CHANGELOG.md")
        else:
            release(args.only, args.dist, allow_dirty=args.allow_dirty, final=args.final)
    except NotReady as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nrelease: interrupted; nothing was uploaded", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
