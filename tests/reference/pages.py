"""Write the pages of docs/reference from the sources: `python -m tests.reference.pages`. With `--check`, compare
instead, and exit with 1 on a difference.
"""

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.reference import api, commands, configuration

COMMAND: Final = "python -m tests.reference.pages"
FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"
PAGES: Final[Mapping[str, Callable[[str], str]]] = {
    "api.md": api.page,
    "commands.md": commands.page,
    "configuration.md": configuration.page,
}


def check(name: str) -> str:
    """Describe what is wrong with a page; empty if nothing is."""
    path, wanted = FOLDER / name, PAGES[name](COMMAND)
    written = path.read_text("utf-8") if path.exists() else ""
    if written == wanted:
        return ""
    difference = difflib.unified_diff(written.splitlines(), wanted.splitlines(), "written", "sources", n=0, lineterm="")
    return "\n".join((f"docs/reference/{name} does not match its sources; write it: {COMMAND}", *difference))


def main(arguments: Sequence[str]) -> int:
    if arguments == ["--check"]:
        wrong = [text for name in PAGES if (text := check(name))]
        print(*wrong, sep="\n", end="", file=sys.stderr)
        return bool(wrong)
    if arguments:
        print(f"usage: {COMMAND} [--check]", file=sys.stderr)
        return 2
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(COMMAND), "utf-8")
        print(f"docs/reference/{name} written", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
