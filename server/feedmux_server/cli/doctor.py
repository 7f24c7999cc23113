"""`feedmux doctor`: checks a deployment, with the server's configuration or as a client, and says what to fix."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from feedmux.cli.connection import add_connection_options
from feedmux.cli.failure import CliError, UsageError
from feedmux.cli.settings import SETTINGS, fill_in
from feedmux.cli.terminal import Terminal, plain, print_json, say

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red"), "unknown": ("?", "yellow")}

_TIMEOUT_MAX_S = 3_600
Report = dict[str, str]
"""check, level (ok, warning, failed, unknown), says, advice."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the server's configuration (FEEDMUX_CONFIG): checks as the server would",
    )
    parser.add_argument(
        "--collection",
        metavar="[SOURCE:]DB.COLL",
        action="append",
        default=[],
        help="check this collection's pre- and post-images; may be given several times",
    )
    parser.add_argument(
        "--timeout", metavar="S", type=float, default=10.0, help="timeout in seconds for each check (default 10)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    add_connection_options(parser)
    parser.set_defaults(complete=None)
    parser.epilog = (
        "With --config it checks what the server depends on: MongoDB, Redis, files, clocks. With --endpoint it checks\n"
        "as a client: the connection to the server, its certificate, its health, the API key. Both may be given.\n"
        "The exit code is 1 if a check fails."
    )


def run(args: argparse.Namespace) -> int:
    path, from_server = args.config, args.config is not None
    if args.config is None and args.endpoint is None:
        # Without options: what the environment names.
        path = Path(os.environ["FEEDMUX_CONFIG"]) if os.environ.get("FEEDMUX_CONFIG") else None
        from_server = path is not None or any(name.upper().startswith("FEEDMUX_SOURCES") for name in os.environ)
    # With --config alone it makes no client checks, whatever the environment names.
    if args.endpoint is not None or args.config is None:
        fill_in(args, with_defaults=False)
        args.source = args.source or SETTINGS["source"].default
    if not (from_server or args.endpoint):
        raise UsageError(
            "nothing to check", "Name the server's file with --config, or a server with --endpoint (FEEDMUX_ENDPOINT)."
        )
    if not 0 < args.timeout <= _TIMEOUT_MAX_S:
        raise UsageError(f"--timeout must be more than 0, and at most {_TIMEOUT_MAX_S}")
    if any("." not in each for each in args.collection):
        raise UsageError("--collection must be DB.COLL or SOURCE:DB.COLL")
    printer = _Printer(as_json=args.json)
    if from_server:
        asyncio.run(_from_the_server(path, args, printer))
    if args.endpoint:
        _from_a_client(args, printer)
    return printer.end()


class _Printer:
    """Prints findings as they come; on a terminal also the check in progress."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._out = Terminal(sys.stderr if as_json else sys.stdout)
        self._reports: list[Report] = []

    def begins(self, name: str) -> None:
        if self._out.interactive:
            self._out.stream.write(f"\r\x1b[K  … {name}")
            self._out.stream.flush()

    def add(self, report: Report) -> None:
        self._reports.append(report)
        if self._as_json and not self._out.interactive:
            return
        mark, colour = _MARKS[report["level"]]
        clear = "\r\x1b[K" if self._out.interactive else ""
        check = self._out.paint(report["check"], "dim")
        lines = f"{clear}{self._out.paint(mark, colour)} {check}: {plain(report['says'])}\n"
        if report["advice"]:
            lines += f"    {plain(report['advice'])}\n"
        self._out.stream.write(lines)
        self._out.stream.flush()

    def end(self) -> int:
        if self._out.interactive:
            self._out.stream.write("\r\x1b[K")
        counts = {level: sum(each["level"] == level for each in self._reports) for level in _MARKS}
        failed = counts["failed"] > 0
        if self._as_json:
            print_json({"ok": not failed, "counts": counts, "findings": self._reports})
        else:
            others = counts["warning"] + counts["unknown"]
            say(f"checks: {counts['ok']} passed, {others} with a note, {counts['failed']} failed")
        return 1 if failed else 0


async def _from_the_server(path: Path | None, args: argparse.Namespace, printer: _Printer) -> None:
    try:
        from feedmux_server.config.errors import ConfigError
        from feedmux_server.config.load import load_config
        from feedmux_server.doctor import examine
    except ModuleNotFoundError as error:
        raise CliError(
            f"the checks of --config need the Python package {error.name}, which is not installed",
            "pip install 'feedmux[server]', or check as a client with --endpoint",
        ) from None
    try:
        config = load_config(path)
    except ConfigError as error:
        says = " ".join(str(error).split())  # one line, as that of any other check
        printer.add(_report("configuration", "failed", says, "`feedmux serve --help` describes every option"))
        return
    printer.add(_report("configuration", "ok", f"{path or 'the environment'} is valid"))
    async for finding in examine(config, args.collection, args.timeout, printer.begins):
        printer.add(_report(finding.check, finding.level.value, finding.says, finding.advice))


def _from_a_client(args: argparse.Namespace, printer: _Printer) -> None:
    from feedmux.cli.doctor_client import steps

    for name, step in steps(args):
        printer.begins(name)
        level, says, advice = _looked(step)
        printer.add(_report(name, level, says, advice))
        if level == "failed":
            return


def _looked(step: Callable[[], tuple[str, str, str]]) -> tuple[str, str, str]:
    try:
        return step()
    except CliError as error:
        return "failed", error.message, error.hint


def _report(check: str, level: str, says: str, advice: str = "") -> Report:
    return {"check": check, "level": level, "says": says, "advice": advice}
