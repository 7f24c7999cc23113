"""`feedmux context`: named connections, so that commands need no options: save, use, list, show, delete."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from feedmux.cli import settings
from feedmux.cli.connection import add_connection_settings, add_json_option, add_tls_settings
from feedmux.cli.failure import CliError, UsageError
from feedmux.cli.operator import add_operator_settings
from feedmux.cli.terminal import Terminal, print_json, say, table

_SHOWN_OF_A_SECRET = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Examples:\n"
        "  feedmux context save dev --environment --use      with FEEDMUX_ENDPOINT and FEEDMUX_API_KEY set\n"
        "  feedmux context save prod --endpoint feedmux.example.com:443 --tls\n"
        "  feedmux subscriptions list --context prod\n\n"
        "An option takes precedence over a context named by --context, that over an environment variable, and a\n"
        "variable over the context in use."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    save = actions.add_parser(
        "save",
        help="store the given connection options",
        description="Stores the given connection options. Other options that the context already has stay. A key is"
        " stored in plain text, in a file that only you may read.",
    )
    save.add_argument("name", metavar="NAME", help="the context, which is created if it does not exist")
    save.add_argument("--use", action="store_true", help="also make it the default for commands that name no context")
    save.add_argument(
        "--environment",
        action="store_true",
        help="also store the values of FEEDMUX_ENDPOINT, FEEDMUX_API_KEY and so on",
    )
    group = save.add_argument_group("connection")
    add_connection_settings(group)
    add_operator_settings(group)
    add_tls_settings(group)
    use = _add(actions, "use", "set the default context, for commands that name no context")
    use.add_argument("name", metavar="NAME", nargs="?", help="the context; without NAME: no default")
    add_json_option(_add(actions, "list", "list all contexts"))
    show = _add(actions, "show", "show the settings of a context, with shortened keys")
    show.add_argument("name", metavar="NAME", nargs="?", help="the context (default: the one in use)")
    add_json_option(show)
    delete = _add(actions, "delete", "delete a context")
    delete.add_argument("name", metavar="NAME", help="the context")


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    return parser


def run(args: argparse.Namespace) -> int:
    _ACTIONS[args.action](args)
    return 0


def _save(args: argparse.Namespace) -> None:
    given = settings.given_in(args, with_variables=args.environment)
    exists = args.name in settings.names()
    stored = {**settings.load(args.name).settings} if exists else {}
    if not given and not exists:
        raise UsageError(
            "nothing to save: give --endpoint, --api-key or another option of a connection, or --environment"
        )
    stored.update(given)
    context = settings.Context(args.name, {name: _plain(stored[name]) for name in settings.SETTINGS if name in stored})
    settings.save(context)
    say(f"context {args.name} is saved: {', '.join(context.settings)}")
    if args.use:
        settings.use(args.name)
        say(f"context {args.name} is in use")


def _use(args: argparse.Namespace) -> None:
    settings.use(args.name)
    say(f"context {args.name} is in use" if args.name else "no context is in use")


def _list(args: argparse.Namespace) -> None:
    current, found, broken = settings.in_use(), list[settings.Context](), list[CliError]()
    for name in settings.names():
        try:
            found.append(settings.load(name))
        except CliError as error:
            broken.append(error)
    if args.json:
        print_json({"in_use": current, "contexts": [{"name": each.name, **_shown(each)} for each in found]})
    elif found:
        rows = [
            (
                "*" if each.name == current else "",
                each.name,
                each.settings.get("endpoint", settings.SETTINGS["endpoint"].default),
                "yes" if each.settings.keys() & {"tls", "ca_file", "certificate_file"} else "no",
                "yes" if "api_key" in each.settings else "no",
                "yes" if "operator_key" in each.settings else "no",
            )
            for each in found
        ]
        say(table(Terminal(sys.stdout), ("", "NAME", "ENDPOINT", "TLS", "API KEY", "OPERATOR KEY"), rows))
    elif not broken:
        say("No contexts yet. Create one: feedmux context save NAME --endpoint HOST:PORT --api-key KEY")
    if broken:
        raise broken[0]


def _show(args: argparse.Namespace) -> None:
    context = settings.chosen(args.name)
    if context is None:
        raise CliError(
            "no context is in use", "`feedmux context use NAME` sets one, `feedmux context list` lists them."
        )
    shown = {"name": context.name, **_shown(context)}
    if args.json:
        print_json(shown)
        return
    terminal = Terminal(sys.stdout)
    for name, value in shown.items():
        say(terminal.paint(name.replace("_", " ").ljust(17), "dim"), value)


def _delete(args: argparse.Namespace) -> None:
    if args.name not in settings.names():
        settings.load(args.name)  # says so
    path = settings.path_of(args.name)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CliError(f"{path} cannot be deleted: {error.strerror}") from None
    if settings.in_use() == args.name:
        settings.use(None)
    say(f"context {args.name} is deleted")


def _shown(context: settings.Context) -> dict[str, Any]:
    return {
        name: f"{value[:_SHOWN_OF_A_SECRET]}…" if settings.SETTINGS[name].is_secret else _plain(value)
        for name, value in context.settings.items()
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


_ACTIONS = {"save": _save, "use": _use, "list": _list, "show": _show, "delete": _delete}
