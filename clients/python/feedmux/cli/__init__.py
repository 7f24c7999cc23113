"""The command line `feedmux`: finds the command, runs it, and turns a failure into a message and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 129 and 143 ended by SIGHUP and SIGTERM. Each command is a
separate module: in `feedmux_server.cli` if it uses the server's code or makes its files, else here. It is imported only
when the command is called, and imports gRPC and the server only when the command runs, so that help appears at once and
client commands do not need the server's packages. See also `failure` and `terminal`.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any, Final

from feedmux.cli.failure import FAILED, UNWRITABLE, CliError, UsageError, as_cli_error, cannot_write, is_unicode
from feedmux.cli.parser import Parser
from feedmux.cli.signals import SIGNALS
from feedmux.cli.terminal import Painted, Terminal, flush, plain, say, silence_stdout

INTERRUPTED = 130
COMPLETE = "__complete"
"""The command that the scripts of `feedmux completion` call with SHELL and the words up to the cursor."""
_SERVER: Final = "feedmux_server.cli"


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the package of its module, which has its name with `_` for `-`, and what its user has to install.

    The module has `add_arguments(parser)` and `run(args)`.
    """

    summary: str
    package: str = __name__
    install: str = "feedmux"


COMMANDS = {
    "watch": Command("show changes as they happen"),
    "consume": Command("print or process the events of a durable subscription, and acknowledge them"),
    "explain": Command("show what opening a feed would do, what is withheld, and why it would be rejected"),
    "subscriptions": Command("list, create, change, move and delete durable subscriptions"),
    "dead-letters": Command("list, show, discard and replay the events that a group has set aside"),
    "streams": Command("show what the server reads from MongoDB, and for which subscribers"),
    "doctor": Command("check a deployment, and say what to fix", _SERVER),
    "drain": Command("make a server move its clients to other servers, then stop"),
    "token": Command("show the content of a resume token or position", _SERVER),
    "context": Command("store connection options under a name, so that commands need no options"),
    "completion": Command("print a script that completes commands in bash, zsh or fish"),
    "keys": Command("make API keys", _SERVER),
    "tenants": Command("check a tenants file, or show what each tenant uses", _SERVER, "feedmux[server]"),
    "serve": Command("run the server on your own MongoDB and Redis", _SERVER, "feedmux[server]"),
    "dev": Command(
        "run the server with an embedded MongoDB and Redis, for trying it out", _SERVER, "feedmux[embedded]"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # Otherwise gRPC's log lines would appear between the results.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if argv is None:
        # Without handlers, the first process of a container would ignore signals.
        SIGNALS.handle()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # `>&-`; else the first socket or file would get its number
            file = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(file, True)
            setattr(sys, name, os.fdopen(file, "w" if number else "r", closefd=False))
    if isinstance(sys.stdout, TextIOWrapper):  # a locale may lack a character; standard error has this handler already
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _code_of(list(sys.argv[1:] if argv is None else argv))
        if SIGNALS.insist:
            silence_stdout()
        flush()
        return code
    except SystemExit as end:  # a signal that came while the output was written
        silence_stdout()
        return int(end.code or 0)
    except BrokenPipeError:
        silence_stdout()
        return 0
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        silence_stdout()
        _complain(cannot_write(error))
        return FAILED


def _code_of(argv: list[str]) -> int:
    """Run one command and return its exit code. Raises OSError where its output cannot be written."""
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:  # of --help, or of a signal
        return int(end.code or 0)
    except Exception as error:
        failure = as_cli_error(error)
        if failure is None:
            raise
        _complain(failure)
        return failure.exit_code


def _run(argv: list[str]) -> int:
    if argv[:1] == [COMPLETE] and len(argv) > 2:
        from feedmux.cli.completion import print_candidates

        words = argv[2:]
        with suppress(CliError, UnicodeError):  # of a command that needs an extra; of words that are not text
            print_candidates(argv[1], _parser(words[0]), words)
        return 0
    for each in argv:
        if not is_unicode(each):
            raise UsageError(f"the argument {os.fsencode(each)!r} is not UTF-8")
    parser = _parser(argv[0] if argv else "")
    args = parser.parse_args(argv)
    if args.version:
        from importlib.metadata import version

        say(f"feedmux {version('feedmux')}")
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
    """Return the parser, with arguments for the called command only."""
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
                module: Any = importlib.import_module(f"{command.package}.{name.replace('-', '_')}")
                module.add_arguments(each)
            each.set_defaults(run=module.run)
    return parser


@contextmanager
def _needing(name: str, command: Command) -> Iterator[None]:
    """Turn the ImportError of a missing package into a CliError that names what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "feedmux", "feedmux_server", "feedmux_embedded"):
            raise
        raise CliError(
            f"`feedmux {name}` needs the Python package {missing}, which is not installed",
            f"pip install '{command.install}'",
        ) from None
    except ImportError as error:
        if error.name != "pymongo":
            raise
        raise CliError(error.msg, f"pip install '{command.install}'") from None


def _complain(failure: CliError) -> None:
    terminal = Terminal(sys.stderr)
    # A message of the server may contain text of MongoDB's, and so values of documents.
    message, hint = ("\n".join(map(plain, text.split("\n"))) for text in (failure.message, failure.hint))
    with suppress(OSError):  # the exit code says it, too
        say(terminal.paint("feedmux:", "red", "bold"), Painted(message), file=sys.stderr)
        if hint:
            say(Painted(f"  {hint}"), file=sys.stderr)
