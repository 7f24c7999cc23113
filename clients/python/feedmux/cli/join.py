"""`feedmux consume --join`: reads a group as one of its members, and settles events once they are printed or processed.

Events of different keys are processed at the same time, by `--jobs` commands; those of a key one after another.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import feedmux
from feedmux.cli.connection import OPEN_TIMEOUT_S
from feedmux.cli.event_output import CHECK_EVERY_S, EventOutput, Notices, remark
from feedmux.cli.failure import CliError, UsageError
from feedmux.cli.feed_arguments import scope_name
from feedmux.cli.shell_command import begin, end, ending
from feedmux.cli.signals import SIGNALS
from feedmux.cli.terminal import escaped, flush, plain, reader_has_gone, write
from feedmux.json_writer import event_json

EX_DATAERR: Final = 65
NOT_RUN: Final = (126, 127)
"""What a shell exits with when the command cannot be executed, or was not found."""
LINE_BYTES_MAX: Final = 4096
"""The most of a line of standard error that is kept as the reason."""
LEFT_S: Final = 5.0
"""How long what a command has left in the pipe is read after its end."""


def check_join(args: argparse.Namespace) -> None:
    """Check the options that are for groups only, or not for groups. Raises UsageError."""
    if not args.join:
        if args.jobs is not None:
            raise UsageError("--jobs requires --join and --exec COMMAND")
        return
    for option in ("takeover", "until_caught_up", "batch"):
        if getattr(args, option):
            raise UsageError(f"--{option.replace('_', '-')} cannot be used with --join")
    if args.jobs is not None and args.command_line is None:
        raise UsageError("--jobs requires --exec COMMAND")
    if args.limit is not None and args.command_line is not None:
        raise UsageError("--limit cannot be used with --join and --exec")


def consume_group(client: feedmux.Client, args: argparse.Namespace, feed: feedmux.Feed, notices: Notices) -> None:
    """Join the group, and process events until a signal. Raises FeedmuxError, SystemExit."""
    output = _MemberOutput(args)
    output.one_collection = feed.collection is not None
    jobs = args.jobs or 1
    with client.subscription(args.name).join(
        on_notice=notices.show, open_timeout_s=OPEN_TIMEOUT_S, window_events=max(64, 4 * jobs)
    ) as member:
        notices.session = member
        if output.for_people:
            remark(f"member of {args.name} ({scope_name(feed)}) at {args.endpoint} (press Ctrl-C to stop)")
        if args.command_line is None:
            print_events(member, output, notices, args.limit)
        else:
            commands = Commands(args.command_line, output, member.close)
            try:
                member.run(commands.handle, concurrency=jobs)
            finally:
                commands.end()
            if commands.cannot_run is not None:
                raise commands.cannot_run


def print_events(member: feedmux.Member, output: EventOutput, notices: Notices, limit: int | None) -> None:
    """Print events and settle each: up to `limit` events, or until a signal."""
    done = 0
    while limit is None or done < limit:
        try:
            event = member.next(CHECK_EVERY_S)
        except TimeoutError:
            if reader_has_gone():
                raise BrokenPipeError from None
            continue
        finally:
            notices.check()
        with SIGNALS.deferred():
            write(output.encode(event))
            flush()
            event.ack()
        done += 1


class Commands:
    """Runs a command for each event, and settles the event by its exit status.

    A worker whose command does not run at all takes the most events of all workers, because it fails at once, and
    would make dead letters of them. So it stops.
    """

    def __init__(self, command_line: str, output: EventOutput, stop: Callable[[], None]) -> None:
        """`stop` asks for the end."""
        self.cannot_run: CliError | None = None
        """Why the command does not run."""
        self._command_line = command_line
        self._output = output
        self._stop = stop
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def handle(self, event: feedmux.MemberEvent) -> None:
        """Run the command, with the event on its standard input. Raises OSError if that cannot be tried."""
        try:
            with self._lock:  # `end` finds every command that was started
                command = begin(self._command_line, self._output.encode(event), stderr=subprocess.PIPE)
                self._running.add(command)
        except OSError as error:
            self._give_up(f"cannot be started: {error.strerror}")
            raise
        said = _LastLine(command)
        try:
            status = command.wait()
            reason = said.text()
        finally:
            with self._lock:
                self._running.discard(command)
        if status == 0:
            return
        how = ending(status)
        is_rejected = status == EX_DATAERR
        settle = event.reject if is_rejected else event.nack
        try:
            settle(reason=reason or f"the command {how}")
        except feedmux.SessionClosed:
            return  # the command was ended because nobody waits for it, and others get the event
        what = "it becomes a dead letter" if is_rejected else "the event has failed"
        remark(f"-- the command {how} in attempt {event.attempt}: {what}")
        if status in NOT_RUN:
            self._give_up(how)

    def _give_up(self, how: str) -> None:
        self.cannot_run = CliError(f"the command {how}", "Check --exec. The event is delivered again.")
        self._stop()

    def end(self) -> None:
        """End the commands that still run, with their children: nobody waits for them."""
        with self._lock:
            for command in self._running:
                end(command)


class _LastLine:
    """Passes on what a command writes to its standard error, and knows the last line of it."""

    def __init__(self, command: subprocess.Popen[bytes]) -> None:
        self._command = command
        self._last = b""
        # What a command leaves running, in the background, has this pipe, too, and may keep it open endlessly.
        self._reader = threading.Thread(target=self._read, name="feedmux-stderr", daemon=True)
        self._reader.start()

    def text(self) -> str:
        """The last line of a command that has ended."""
        self._reader.join(LEFT_S)
        return plain(self._last.decode(errors="replace"))

    def _read(self) -> None:
        assert self._command.stderr is not None
        with self._command.stderr as lines:
            while line := lines.readline(LINE_BYTES_MAX):
                with suppress(OSError, ValueError):  # nobody reads it
                    sys.stderr.buffer.write(line)
                    sys.stderr.buffer.flush()
                self._last = line.strip() or self._last


class _MemberOutput(EventOutput):
    """Members receive BSON, so the texts are made here."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args, to_stdout=args.command_line is None)
        self._raw = args.raw

    def encode(self, event: feedmux.Event) -> bytes:
        if self.for_people or self._raw:
            return super().encode(event)
        text = event_json(event.raw)
        return (escaped(text) if self._for_a_terminal else text) + b"\n"
