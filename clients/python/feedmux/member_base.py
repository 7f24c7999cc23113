"""What the synchronous and the asynchronous member of a group have in common."""

import concurrent.futures
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from bson.timestamp import Timestamp

from feedmux.member_buffer import MemberBuffer
from feedmux.member_event import MemberEvent
from feedmux.notices import Notice
from feedmux.options import SessionArguments, SessionOptions
from feedmux.outcomes import Failed, Reject, RetryAfter, outcome_of
from feedmux.session_base import OnNotice
from feedmux.session_buffer import Ended

_log = logging.getLogger("feedmux")

WINDOW_EVENTS: Final = 64
REPORT_INTERVAL_S: Final = 0.02
"""A message costs the server as much as ten events: 50 a second are little, and no key waits long for its next run."""

Handler = Callable[[MemberEvent], Any]


def member_options(chosen: SessionOptions, given: SessionArguments) -> SessionOptions:
    """Return the options of a member: those of the client, with a member's defaults, and the given ones. Raises
    ValueError."""
    options = replace(replace(chosen, window_events=WINDOW_EVENTS, ack_interval_s=REPORT_INTERVAL_S), **given)
    if options.format != "bson":
        raise ValueError("a member of a group receives BSON: leave out `format`")
    return options


class MemberBase:
    """The state of a member."""

    def __init__(self, buffer: MemberBuffer, on_notice: OnNotice | None) -> None:
        self._buffer = buffer
        self._on_notice = on_notice

    @property
    def closed(self) -> bool:
        """Whether the member was closed, or an error has ended it."""
        return self._buffer.closing or self._buffer.ended is not None

    @property
    def cluster_time(self) -> Timestamp | None:
        """The cluster time up to which all members have settled everything, as the server last reported it."""
        time = self._buffer.cluster_time
        return Timestamp(*time) if time != (0, 0) else None

    def _say(self, notice: Notice) -> Any:
        """Tell the user. Return what `on_notice` has returned."""
        if self._on_notice is not None:
            return self._on_notice(notice)
        _log.warning("%s", notice)
        return None


def end(ended: Ended) -> None:
    """Raise the error that ended a member, if one did."""
    if ended.error is not None:
        raise ended.error


def check_run(handler: Handler, concurrency: int, timeout_s: float | None, *, asynchronous: bool) -> None:
    """Check the arguments of `run`. Raises TypeError and ValueError."""
    if not callable(handler):
        raise TypeError(f"the handler is a function of an event, not {type(handler).__name__}")
    if not asynchronous and inspect.iscoroutinefunction(handler):
        raise TypeError("the handler is a coroutine function: use feedmux.AsyncClient, or a function")
    if isinstance(concurrency, bool) or not isinstance(concurrency, int):
        raise TypeError(f"concurrency is a whole number, not {type(concurrency).__name__}")
    if concurrency < 1:
        raise ValueError("concurrency is at least 1")
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError("timeout_s is above 0")


class WorkNotDone(TypeError):
    """The handler has returned work that is not done, such as a coroutine, a generator or a future. To settle the event
    would lose it."""


def check_result(result: object) -> None:
    """Check what a handler has returned. Raises WorkNotDone."""
    if result is None or not (
        inspect.isawaitable(result)
        or inspect.isgenerator(result)
        or inspect.isasyncgen(result)
        or isinstance(result, concurrent.futures.Future)
    ):
        return
    name = type(result).__name__
    if inspect.iscoroutine(result):
        result.close()
    raise WorkNotDone(
        f"the handler has returned a {name}, and its work is not done: wait for the work in the handler. Coroutine"
        " functions are handlers for feedmux.AsyncClient"
    )


def failure_of(event: MemberEvent, error: BaseException) -> Failed:
    """Return what becomes of an event whose handler raised an error, and log it."""
    outcome = outcome_of(error)
    with suppress(Exception):  # as in `outcome_of`
        asked = isinstance(error, RetryAfter | Reject)
        trace = None if asked else error
        _log.warning("attempt %d of an event failed: %s", event.attempt, outcome.reason, exc_info=trace)
    return outcome


def too_late(timeout_s: float) -> Failed:
    """Return what becomes of an event whose handler has not ended in time."""
    return Failed(reason=f"the handler has not ended within {timeout_s:g} s")


def all_stuck(concurrency: int, timeout_s: float) -> TimeoutError:
    """Return the error that ends `run` when no worker is left."""
    return TimeoutError(
        f"all {concurrency} handlers have exceeded timeout_s={timeout_s:g} and cannot be stopped: restart the process"
    )


@contextmanager
def sigterm(react: Callable[[], None], install: Callable[[Callable[[], None]], Callable[[], Any]]) -> Iterator[None]:
    """React to SIGTERM within the block, where the program has not decided itself what happens. `install` returns how
    to undo it."""
    is_free = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_free:
        yield
        return
    undo = install(react)
    try:
        yield
    finally:
        undo()
