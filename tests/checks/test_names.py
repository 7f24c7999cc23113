"""The modules and options that code and pages name in backticks exist."""

import re
from collections.abc import Iterator
from typing import Final

from feedmux_server.config.server import Config
from tests.checks.test_docs import RECORDS, REPOSITORY, listed, pages

GENERATED: Final = "clients/python/feedmux/v1/"
SERVER: Final = "server/feedmux_server/"
FILE: Final = re.compile(r"`([\w./-]*\w\.py)`")
MODULE: Final = re.compile(r"`(\w+(?:\.\w+)+)(?:\(\))?`")
FILES: Final = frozenset(listed("*.py"))
NAMES: Final = frozenset(path[start:] for path in FILES for start in (0, *(at.end() for at in re.finditer("/", path))))
"""Each file by its path in the repository, and by the ends of this path."""
PACKAGES: Final = frozenset(
    path.removeprefix(SERVER).removesuffix("/__init__.py").replace("/", ".")
    for path in FILES
    if path.startswith(SERVER) and path.endswith("/__init__.py")
)

MADE: Final = frozenset({"orders.py"})
"""Files that the quickstarts tell their readers to make."""
SECTIONS: Final = frozenset(
    name for name, field in Config.model_fields.items() if hasattr(field.annotation, "model_fields")
)


def missing(line: str, *, of_server: bool) -> Iterator[str]:
    """The files that a line names and that do not exist; in a line of the server also the modules, as `core.errors`,
    and the options, as `limits.sessions`."""
    yield from (name for name in FILE.findall(line) if name not in NAMES)
    for name in MODULE.findall(line) if of_server else ():
        section, option = name.split(".")[:2]
        if section in SECTIONS and section not in PACKAGES and not is_option(section, option):
            yield name
        module = as_module(name)
        if module.count(".") and not module.endswith(".py") and not is_option(*module.split(".")[:2]):
            file = f"{SERVER}{module.replace('.', '/')}"
            if module not in PACKAGES and f"{file}.py" not in FILES:
                yield module


def as_module(name: str) -> str:
    """The beginning of a dotted name that must be a module or a package: all its packages, and one part more."""
    parts = name.split(".")
    depth = 0
    while depth < len(parts) and ".".join(parts[: depth + 1]) in PACKAGES:
        depth += 1
    return ".".join(parts[: depth + 1]) if depth else ""


def is_option(section: str, option: str) -> bool:
    """Whether the server's configuration has this option: the section `telemetry` has the name of a package."""
    return section in SECTIONS and option in Config.model_fields[section].annotation.model_fields  # type: ignore[union-attr]


def test_modules_exist() -> None:
    found = []
    for name in sorted(
        each for each in FILES if not each.startswith(GENERATED) and each != "tests/checks/test_names.py"
    ):
        for number, line in enumerate((REPOSITORY / name).read_text().splitlines(), 1):
            found += [f"{name}:{number}: {each}" for each in missing(line, of_server=name.startswith(SERVER))]
    for name in (each for each in pages() if not each.startswith(RECORDS)):
        of_server = name in ("ARCHITECTURE.md", "docs/limits.md") or name.startswith("docs/adr/")
        for number, line in enumerate((REPOSITORY / name).read_text().splitlines(), 1):
            found += [f"{name}:{number}: {each}" for each in missing(line, of_server=of_server) if each not in MADE]
    assert found == []
