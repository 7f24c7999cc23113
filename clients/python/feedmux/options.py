"""The client's tunable options, each with its trade-off. Frozen; no other module holds constants of this kind."""

import math
import threading
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from bson.codec_options import CodecOptions, DatetimeConversion

from feedmux.feeds import Format

SESSION_CODEC: CodecOptions[Any] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO)
"""bson's default, except that dates outside Python's range become DatetimeMS instead of ending the loop."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session behaves.

    The window bounds the events that wait in the client, by number and by bytes: a larger window evens out delivery, a
    smaller one saves memory. It is refilled when a quarter of it has been taken.
    """

    window_events: int = 16_384
    window_bytes: int = 8 * 1024 * 1024
    message_bytes_max: int = 1024 * 1024
    """Size of the largest message: 64 KiB to 64 MiB. Larger events arrive as fragments, which the client joins."""
    heartbeat_s: float = 10.0
    """1 to 60. Interval of heartbeats from an idle server; after three silent intervals the client reconnects."""
    ack_interval_s: float = 0.1
    """Longest delay before acks are sent; a longer one means fewer messages, and more repeats after a crash."""
    open_timeout_s: float = 30.0
    """How long `open()` keeps trying until the server has opened the session."""
    reconnect_timeout_s: float | None = None
    """How long a session that was open keeps trying to reconnect; None: forever."""
    close_timeout_s: float = 5.0
    """How long `close()` waits until the acks are confirmed."""
    backoff_first_s: float = 0.2
    backoff_most_s: float = 10.0
    """The delay before an attempt is random, from 0 to a bound that doubles from `backoff_first_s` to
    `backoff_most_s`."""
    format: Format = "bson"
    codec_options: CodecOptions[Any] = field(default=SESSION_CODEC)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(each.default, int) and not isinstance(value, int):
                raise TypeError(f"{each.name} is a whole number, not {type(value).__name__}")
            if isinstance(each.default, float) and not isinstance(value, int | float):
                raise TypeError(f"{each.name} is a number, not {type(value).__name__}")
        if not 1 <= self.window_events < 2**31 or not 1 <= self.window_bytes <= 2**40:
            raise ValueError("the window is 1 to 2^31-1 events and 1 to 2^40 bytes")
        if not 64 * 1024 <= self.message_bytes_max <= 64 * 1024 * 1024:
            raise ValueError("message_bytes_max is 64 KiB to 64 MiB")
        if not 1 <= self.heartbeat_s <= 60:
            raise ValueError("heartbeat_s is 1 to 60")
        for name in ("ack_interval_s", "open_timeout_s", "close_timeout_s", "backoff_first_s", "backoff_most_s"):
            check_duration(getattr(self, name), name)
        if self.reconnect_timeout_s is not None:
            check_duration(self.reconnect_timeout_s, "reconnect_timeout_s")


def check_duration(value: float, name: str) -> None:
    """Raise ValueError for a negative number and for NaN, which breaks the order of an event loop's timers."""
    if not value >= 0:
        raise ValueError(f"{name} is 0 or more, not {value:g}")


def wait_s(timeout_s: float | None) -> float | None:
    """Return the seconds to wait, None for no limit. Raises ValueError for NaN."""
    if timeout_s is None or timeout_s > threading.TIMEOUT_MAX:  # infinity, for example
        return None
    if math.isnan(timeout_s):
        raise ValueError("timeout_s is NaN")
    return timeout_s


class SessionArguments(TypedDict, total=False):
    """The fields of SessionOptions as named arguments of `open()`."""

    window_events: int
    window_bytes: int
    message_bytes_max: int
    heartbeat_s: float
    ack_interval_s: float
    open_timeout_s: float
    reconnect_timeout_s: float | None
    close_timeout_s: float
    backoff_first_s: float
    backoff_most_s: float
    format: Format
    codec_options: CodecOptions[Any]
