"""The modules, options, defaults, metrics and variables that code and pages name in backticks exist."""

import re
from collections.abc import Iterator
from typing import Final

from feedmux_server.config.server import Config
from tests.checks.test_docs import GENERATED as GENERATED_PAGES
from tests.checks.test_docs import RECORDS, REPOSITORY, listed, pages
from tests.tables import over
from tests.telemetry.metrics_page import series

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


ABOUT_THE_SERVER: Final = [
    page
    for page in pages()
    if (page.startswith("docs/") or "/" not in page) and page not in GENERATED_PAGES and not page.startswith(RECORDS)
]
CLAIM: Final = re.compile(r"`((?:FEEDMUX_)?\w+(?:\.\w+)*)`(?:\s\((\d[\d,.]*)( [KM]iB)?(?: s)?\))?")
"""An option, a metric or an attribute by its name, or an option by its variable; perhaps with a default."""
DEFAULT: Final = re.compile(r"· default `([\d.]+)`")
UNITS: Final = {"": 1, " KiB": 1 << 10, " MiB": 1 << 20}


def wrong(text: str) -> list[str]:
    """The names in a page that the server does not have, and the defaults that are others."""
    reference = (REPOSITORY / "docs/reference/configuration.md").read_text()
    facts = dict(re.findall(r"^### `([\w.\[\]]+)`\n\n(.+)$", reference, re.MULTILINE))
    variables = set(re.findall(r"\bFEEDMUX_\w+", reference + (REPOSITORY / "docs/reference/commands.md").read_text()))
    metrics = {name for metric, exported in series().items() for name in (metric.name, exported, *metric.attributes)}
    found = []
    for name, default, unit in CLAIM.findall(text):
        section, _, option = name.partition(".")
        is_known = {
            "FEEDMUX": name.replace("__MAIN__", "__NAME__") in variables,
            "feedmux": name in metrics or not option.islower() or option in ("v1", "subscription"),
        }.get(name[:7], section not in SECTIONS or not option.isidentifier() or option == "py" or name in facts)
        if not is_known:
            found.append(name)
        defaults = [fact for each, fact in facts.items() if each == name or each.endswith(f".{name}")]
        stated = {float(number) for fact in defaults for number in DEFAULT.findall(fact)}
        if default and stated and float(default.replace(",", "")) * UNITS[unit] not in stated:
            found.append(f"{name} ({default}{unit})")
    return found


@over("page", ABOUT_THE_SERVER)
def test_pages_name_what_the_server_has(page: str) -> None:
    assert wrong((REPOSITORY / page).read_text()) == []


def test_a_name_or_a_default_that_is_wrong_is_found() -> None:
    text = "`limits.event_time_s` (6 s), `limits.request_bytes` (256 KiB), `limits.no`, `feedmux.no`, `FEEDMUX_NO`"
    assert wrong(text) == ["limits.event_time_s (6)", "limits.no", "feedmux.no", "FEEDMUX_NO"]
