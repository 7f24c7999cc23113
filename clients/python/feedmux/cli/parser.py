"""An argparse parser without abbreviations, which suggests corrections for mistyped commands, values and options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, NoReturn

from feedmux.cli.failure import UsageError

_CHOICE = re.compile(r"invalid choice: '(?P<typed>[^']*)' \(choose from (?P<known>.*)\)")
_OPTION = re.compile(r"unrecognized arguments: (?P<typed>--[\w-]+)")
_NO_VALUE = re.compile(r"argument (?:\S+/)?(?P<option>--[\w-]+): expected one argument")


class Parser(argparse.ArgumentParser):
    """The parser of the command line, and of its subcommands: argparse makes their parsers from the same class."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError with a suggestion."""
        raise UsageError(message.removeprefix("argument "), f"{self._suggestion(message)}See `{self.prog} --help`.")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Report unknown arguments of a command as that command's, not as the program's."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _suggestion(self, message: str) -> str:
        if found := _CHOICE.search(message):
            known = re.findall(r"[^\s',]+", found["known"])
        elif found := _OPTION.search(message):
            known = list(self._options())
        elif found := _NO_VALUE.search(message):
            return f"A value that begins with - follows =, as in {found['option']}=-1. "
        else:
            return ""
        close = get_close_matches(found["typed"], known, 1)
        return f"Did you mean {close[0]}? " if close else ""

    def _options(self) -> Iterator[str]:
        """Return the options of this command and of its subcommands."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for each in action.choices.values():
                    yield from each._options()
