"""`./run release`: checks, builds and validates what a release consists of, and prints the commands that publish it.

It uploads nothing. docs/releasing.md describes a release.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent


class NotReady(Exception):
    """What is wrong, and the next step."""


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
    Place("compose.yaml", r"^    image: feedmux:", "$"),
)
VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
POM_TIME: Final = re.compile(r"(<project\.build\.outputTimestamp>)[^<]*(<)")


def version_in(place: Place, root: Path = REPOSITORY) -> str:
    """The version that stands there."""
    found = place.pattern.findall((root / place.file).read_text())
    if len(found) != 1:
        raise NotReady(
            f"{place.file} has {len(found)} places for the version like {place.before!r}. Fix COPIES in release.py."
        )
    return str(found[0][1])


def project_version(root: Path = REPOSITORY) -> str:
    """The version of pyproject.toml, which is everybody's."""
    return str(tomllib.loads((root / SOURCE.file).read_text())["project"]["version"])


def differences(root: Path = REPOSITORY) -> Mapping[str, str]:
    """The files that name another version than pyproject.toml, and which."""
    wanted = project_version(root)
    found = [(place.file, version_in(place, root)) for place in COPIES]
    return {file: version for file, version in found if version != wanted}


def set_version(version: str, root: Path = REPOSITORY) -> list[str]:
    """Writes the version wherever it stands, and today into pom.xml as the time of all entries of its archives."""
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


# --- command line ------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run release", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    new = commands.add_parser("set-version", help="write a version into every file that names it")
    new.add_argument("version", metavar="X.Y.Z")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    try:
        for file in set_version(args.version):
            print(file)
    except NotReady as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
