"""Files of the repository that a program writes from their sources, so that a test can compare the two."""

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Written:
    """The files that `command` writes; with `--check` it compares instead, and exits with 1 on a difference."""

    command: str
    files: Mapping[Path, Callable[[], str]]

    def check(self, path: Path) -> str:
        """Describe what is wrong with a file; empty if nothing is."""
        written, wanted = path.read_text("utf-8") if path.exists() else "", self.files[path]()
        if written == wanted:
            return ""
        before, after = written.splitlines(), wanted.splitlines()
        difference = difflib.unified_diff(before, after, "file", "sources", n=0, lineterm="")
        return "\n".join((f"{path.name} does not match its sources; write it again: {self.command}", *difference))

    def check_all(self) -> str:
        return "\n".join(wrong for path in self.files if (wrong := self.check(path)))

    def main(self, arguments: Sequence[str]) -> int:
        if arguments == ["--check"]:
            wrong = self.check_all()
            if wrong:
                print(wrong, file=sys.stderr)
            return bool(wrong)
        if arguments:
            print(f"usage: {self.command} [--check]", file=sys.stderr)
            return 2
        for path, text in self.files.items():
            path.write_text(text(), "utf-8")
            print(f"{path.name} written", file=sys.stderr)
        return 0
