"""What became of an event of a group, and the exceptions by which a handler says more than that it has failed."""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

REASON_BYTES_MAX: Final = 1024
RETRY_AFTER_MAX_S: Final = 10 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Done:
    """The event has been processed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The event could not be processed. It is delivered again after `retry_after_s`, by default when the server says;
    or it becomes a dead letter, if `reject` is set."""

    retry_after_s: float | None = None
    reason: str = ""
    reject: bool = False


Outcome = Done | Failed
DONE: Final = Done()


class RetryAfter(Exception):
    """Raised by a handler: deliver the event again, not before `delay_s` seconds from now."""

    def __init__(self, delay_s: float, reason: str = "") -> None:
        super().__init__(delay_s, reason)  # so that it can be pickled: a pool of processes may raise it
        self._outcome = failed(delay_s, reason)

    def __str__(self) -> str:
        return self._outcome.reason or f"again in {self._outcome.retry_after_s:g} s"


class Reject(Exception):
    """Raised by a handler: the event can never be processed; it becomes a dead letter."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "rejected")
        self._outcome = rejected(reason)


def failed(retry_after_s: float | None, reason: str) -> Failed:
    """Return the outcome of an event that is to be delivered again. Raises ValueError or TypeError."""
    if retry_after_s is not None:
        if isinstance(retry_after_s, bool) or not isinstance(retry_after_s, int | float):
            raise TypeError(f"the delay is a number of seconds, not {type(retry_after_s).__name__}")
        if not (math.isfinite(retry_after_s) and 0 <= retry_after_s <= RETRY_AFTER_MAX_S):
            raise ValueError("the delay is 0 seconds to 10 years")
    return Failed(retry_after_s, _checked(reason))


def rejected(reason: str) -> Failed:
    """Return the outcome of an event that becomes a dead letter. Raises TypeError."""
    return Failed(None, _checked(reason), reject=True)


def outcome_of(error: BaseException) -> Failed:
    """Return the outcome of an event whose handler raised the error."""
    name = text = ""
    with suppress(Exception):  # a class of the user's may do anything; the event must be settled all the same
        outcome = getattr(error, "_outcome", None) if isinstance(error, RetryAfter | Reject) else None
        if isinstance(outcome, Failed):
            return outcome
        name = type(error).__name__
        text = str(error)[:REASON_BYTES_MAX]
    return Failed(reason=_cut(f"{name}: {text}" if text else name), reject=issubclass(type(error), Reject))


def _checked(reason: str) -> str:
    if not isinstance(reason, str):
        raise TypeError(f"a reason is a text, not {type(reason).__name__}")
    return _cut(reason)


def _cut(text: str) -> str:
    """Return the text as far as the server takes it. What UTF-8 cannot represent is escaped."""
    data = text[:REASON_BYTES_MAX].encode("utf-8", "backslashreplace")
    return data[:REASON_BYTES_MAX].decode("utf-8", "ignore")
