"""The command line `feedmux`: finds the command, runs it, and turns what goes wrong into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Each command is a module of its own that is imported
only when it is called, and imports gRPC and the server only when it runs, so that help comes at once and a client's
commands need nothing of the server. Neighbours: `failure`, `terminal`.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from feedmux.cli.failure import CliError, as_cli_error
from feedmux.cli.parser import Parser
from feedmux.cli.terminal import Terminal, silence_stdout

INTERRUPTED = 130
COMPLETE = "__complete"
"""What the scripts of `feedmux completion` call: SHELL, then the words up to the cursor."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the module that has `add_arguments(parser)` and `run(args)`, and what it needs to be installed."""

    module: str
    summary: str
    install: str = "feedmux"


COMMANDS = {
    "watch": Command("watch", "show changes as they happen"),
    "consume": Command("consume", "print or process the events of a durable subscription, and acknowledge them"),
    "explain": Command("explain", "what opening a feed would do, what is withheld, why it would be refused"),
    "subscriptions": Command("subscriptions", "list, create, change, move and delete durable subscriptions"),
    "streams": Command("streams", "what the server reads from MongoDB, and for whom"),
    "doctor": Command("doctor", "look at a deployment, and say what to do"),
    "drain": Command("drain", "have a server tell its clients to go elsewhere, and end"),
    "token": Command("token", "what a resume token or position says"),
    "context": Command("context", "name the connections of these commands, so that they need no options"),
    "completion": Command("completion", "print a script that completes commands in bash, zsh or fish"),
    "keys": Command("keys", "make API keys"),
    "tenants": Command("tenants", "check a tenants file; who uses how much", "feedmux[server]"),
    "serve": Command("serve", "run the server on your own MongoDB and Redis", "feedmux[server]"),
    "dev": Command("dev", "run the server with a MongoDB and Redis of its own, to play with", "feedmux[embedded]"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; wrong usage raises SystemExit(2), as argparse does."""
    # gRPC's own log lines would stand between the results.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
        return 0
    except Exception as error:
        failure = as_cli_error(error)
        if failure is None:
            raise
        _complain(failure)
        return failure.exit_code


def _run(argv: list[str]) -> int:
    if argv[:1] == [COMPLETE]:
        from feedmux.cli.completion import print_candidates

        words = argv[2:]
        with suppress(CliError):  # of a command that needs an extra
            print_candidates(argv[1], _parser(words[0]), words)
        return 0
    parser = _parser(argv[0] if argv else "")
    args = parser.parse_args(argv)
    if args.version:
        from importlib.metadata import version

        print(f"feedmux {version('feedmux')}")
        return 0
    if args.command is None:
        parser.print_help()
        return 2
    complete: Callable[[argparse.Namespace], None] | None = getattr(args, "complete", None)
    if complete is not None:
        complete(args)
    with _needing(args.command, COMMANDS[args.command]):
        result: int = args.run(args)
    return result


def _parser(called: str) -> Parser:
    """With the arguments of the command that is called; the others have none."""
    parser = Parser(prog="feedmux", description="MongoDB's change feeds, read once and served to many.")
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        each = commands.add_parser(
            name,
            help=command.summary,
            description=command.summary[0].upper() + command.summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if called == name:
            with _needing(name, command):
                module: _Module = importlib.import_module(f"{__name__}.{command.module}")  # type: ignore[assignment]
                module.add_arguments(each)
            each.set_defaults(run=module.run)
    return parser


@contextmanager
def _needing(name: str, command: Command) -> Iterator[None]:
    """Turns a package that is not installed into a CliError that names what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "feedmux", "feedmux_server"):
            raise
        raise CliError(
            f"`feedmux {name}` needs the Python package {missing}, which is not installed",
            f"pip install '{command.install}'",
        ) from None
    except ImportError as error:
        if error.name != "pymongo":
            raise
        raise CliError(error.msg, f"pip install '{command.install}'") from None


class _Module:
    """What a command's module offers."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None: ...

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        raise NotImplementedError


def _complain(failure: CliError) -> None:
    terminal = Terminal(sys.stderr)
    print(f"{terminal.paint('feedmux:', 'red', 'bold')} {failure.message}", file=sys.stderr)
    if failure.hint:
        print(f"  {failure.hint}", file=sys.stderr)
