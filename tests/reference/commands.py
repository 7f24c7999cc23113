"""docs/reference/commands.md, from the parsers of the command line."""

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from feedmux.cli import COMMANDS, _parser
from feedmux.cli.settings import SETTINGS
from tests.reference.markdown import described, table

_HEAD: Final = """\
# Commands

`feedmux COMMAND --help` prints the same in a terminal; [The command line](../command-line.md) explains contexts,
completion, output and exit codes. `feedmux --version` prints the version. Written by
`{command}` from `clients/python/feedmux/cli/` and `server/feedmux_server/cli/`.

"""
_CONNECTION: Final = """\
## Connection options

Most commands have some of these options. A value can also come from an environment variable or from a
[context](../command-line.md#contexts).

"""
_EPILOGS: Final = {"feedmux serve": "The options of the file are in [Configuration](configuration.md).\n\n"}
"""Instead of what the command's help appends: a page that says the same."""
Shared = Mapping[tuple[str, str], argparse.Action]


def page(command: str) -> str:
    """The Markdown of the page."""
    parsers = list(_parsers())
    connection = [each for parser in parsers for each in _connection(parser)]
    counts = Counter(map(_key, connection))
    shared = {_key(each): each for each in connection if counts[_key(each)] > 1}
    commands = [(f"[`feedmux {name}`](#feedmux-{name})", each.summary) for name, each in COMMANDS.items()]
    return "".join(
        (
            _HEAD.format(command=command),
            table(("command", "what it does"), commands) + "\n",
            _CONNECTION + _arguments(shared.values(), "feedmux"),
            *(_described(parser, shared) for parser in parsers),
        )
    )


def _parsers() -> Iterator[argparse.ArgumentParser]:
    """The parser of each command, followed by those of its actions."""
    for name in COMMANDS:
        yield from _inner(_actions(_parser(name))[name])


def _inner(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for each in _actions(parser).values():
        yield from _inner(each)


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next((each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction)), {})


def _connection(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [each for group in parser._action_groups if group.title == "connection" for each in group._group_actions]


def _key(action: argparse.Action) -> tuple[str, str]:
    return action.dest, action.help or ""


def _described(parser: argparse.ArgumentParser, shared: Shared) -> str:
    """The section of a command or of an action."""
    connection = [each for each in _connection(parser) if _key(each) in shared]
    own = [
        each
        for each in parser._actions
        if each not in connection and not isinstance(each, (argparse._HelpAction, argparse._SubParsersAction))
    ]
    level = "###" if parser.prog.count(" ") > 1 else "##"
    parts = [f"{level} {parser.prog}\n\n{described(parser.description, parser.prog)}\n\n"]
    if actions := _actions(parser):
        links = (f"[`{name}`](#{each.prog.replace(' ', '-')})" for name, each in actions.items())
        parts.append(f"Actions: {', '.join(links)}.\n\n")
    else:
        parts.append(f"```\n{_usage(parser)}\n```\n\n")
    if own:
        parts.append(_arguments(sorted(own, key=lambda each: bool(each.option_strings)), parser.prog))
    if connection:
        names = ", ".join(f"`{each.option_strings[-1]}`" for each in connection)
        parts.append(f"[Connection options](#connection-options): {names}.\n\n")
    if parser.prog in _EPILOGS:
        parts.append(_EPILOGS[parser.prog])
    elif parser.epilog:
        parts.append(f"```\n{parser.epilog.replace('%%', '%')}\n```\n\n")
    return "".join(parts)


def _usage(parser: argparse.ArgumentParser) -> str:
    """Not that of argparse, which differs between versions of Python."""
    positional = (_name(each) for each in parser._get_positional_actions())
    return " ".join((parser.prog, "[OPTION …]", *positional))


def _name(action: argparse.Action) -> str:
    value = str(action.metavar or (action.dest.upper() if not action.choices else "VALUE"))
    if not action.option_strings:
        return f"[{value}]" if action.nargs == "?" and not value.startswith("[") else value
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


def _arguments(actions: Iterable[argparse.Action], command: str) -> str:
    """A table of arguments; without a column that would be empty."""
    titles = ["argument", "values", "default", "description"]
    rows = [
        [
            f"`{_name(each)}`",
            ", ".join(f"`{choice}`" if choice else "empty" for choice in each.choices or ()),
            _default(each),
            described(each.help, f"{command} {_name(each)}").replace("%%", "%"),
        ]
        for each in actions
    ]
    kept = [column for column in range(len(titles)) if any(row[column] for row in rows)]
    return table([titles[column] for column in kept], ([row[column] for column in kept] for row in rows)) + "\n"


def _default(action: argparse.Action) -> str:
    value = action.default
    if value is None and action.option_strings and action.dest in SETTINGS:
        value = SETTINGS[action.dest].default
    is_unset = value in (None, False, "", argparse.SUPPRESS) or value == [] or isinstance(value, tuple)
    return "" if is_unset else f"`{value}`"
