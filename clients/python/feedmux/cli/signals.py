"""How `feedmux consume` ends: at once at a signal, or when what is in process is acknowledged."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from subprocess import Popen

from feedmux.cli.shell_command import end

_DAYS_S = 1e9
"""Longer than any command takes."""


class Signals:
    """Handlers for SIGINT, SIGTERM and SIGHUP, which end this command.

    The command ends at once, or, while an --exec command runs, after that command and its ack or at a second signal.
    """

    def __init__(self) -> None:
        self._deferring = False
        self._received = 0
        self._is_second = False
        self._is_starting = False
        """A command is being started. An exception would lose it: nobody would know its process."""
        self._interrupt: Callable[[], None] = lambda: None

    def handle(self) -> None:
        """Install the handlers, except for a signal that is ignored (nohup)."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._receive)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer signals until the block has ended; `check` then raises."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def run(self, begin: Callable[[], Popen[bytes]]) -> int:
        """Run a command, and return its exit status. Pass SIGINT on to it; a second signal kills it."""
        command = None
        self._is_starting = True
        try:
            command = begin()
            self._interrupt = partial(end, command, signal.SIGINT)  # in a terminal, Ctrl-C is for the command, too
            self._is_starting = False
            if self._received == signal.SIGINT:
                self._interrupt()
            if self._is_second:
                self.check()
            # With a time, it looks every 50 ms: a signal that another thread has received does not end a wait.
            return command.wait(_DAYS_S)
        except BaseException:
            if command is not None:
                end(command)
                command.wait()
            raise
        finally:
            self._is_starting = False
            self._interrupt = lambda: None

    def check(self) -> None:
        """Raise SystemExit if a signal has arrived."""
        if self._received:
            raise SystemExit(128 + self._received)

    def _receive(self, number: int, _: object) -> None:
        self._is_second, self._received = self._received != 0, number
        if number == signal.SIGINT:
            self._interrupt()
        if (self._is_second or not self._deferring) and not self._is_starting:
            self.check()
