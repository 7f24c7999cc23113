"""How a command ends at a signal: where it is, or when what it writes or processes is complete."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import current_thread, main_thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from subprocess import Popen

_DAYS_S = 1e9
"""Longer than any command takes."""


class Signals:
    """Handlers for SIGINT, SIGTERM and SIGHUP, which end this command: where it is, or after a block of `deferred`. A
    second signal ends it at once."""

    def __init__(self) -> None:
        self._deferring = False
        self._received = 0
        self._pending = 0
        self._is_second = False
        self._is_starting = False
        """A command is being started. An exception would lose it: nobody would know its process."""
        self._interrupt: Callable[[], None] = lambda: None

    def handle(self) -> None:
        """Install the handlers, except for a signal that is ignored (nohup)."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._receive)

    @property
    def insist(self) -> bool:
        """Whether a second signal has arrived: nothing more is waited for."""
        return self._is_second

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer signals until the block has ended. Raises SystemExit then."""
        if self._deferring or current_thread() is not main_thread():  # handlers run in the main thread
            yield
            return
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        self.check()

    def run(self, begin: Callable[[], Popen[bytes]]) -> int:
        """Run a command, and return its exit status. Pass SIGINT on to it; a second signal kills it."""
        from feedmux.cli.shell_command import end

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
        """Raise SystemExit if a signal has arrived that has not raised it."""
        if self._pending:
            number, self._pending = self._pending, 0
            raise SystemExit(128 + number)

    def _receive(self, number: int, _: object) -> None:
        self._is_second, self._received = self._received != 0, number
        self._pending = number
        if number == signal.SIGINT:
            self._interrupt()
        if (self._is_second or not self._deferring) and not self._is_starting:
            self.check()


SIGNALS = Signals()
"""Those of this process. `main` installs the handlers."""
