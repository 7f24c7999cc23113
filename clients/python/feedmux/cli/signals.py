"""How `feedmux consume` ends: at once at a signal, or when what is in process is acknowledged."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Signals:
    """Handlers for SIGINT, SIGTERM and SIGHUP, which end this command.

    The command ends at once, or, while an --exec command runs, after that command and its ack or at a second signal.
    """

    def __init__(self) -> None:
        self._deferring = False
        self._received = 0

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

    def check(self) -> None:
        """Raise SystemExit if a signal has arrived."""
        if self._received:
            raise SystemExit(128 + self._received)

    def _receive(self, number: int, _: object) -> None:
        again, self._received = self._received, number
        if again or not self._deferring:
            self.check()
