"""Options of sessions: what cannot be is refused where it is given."""

import math
from typing import Any

import pytest

import feedmux
from feedmux.options import wait_s
from tests.tables import over


@over(
    "wrong",
    [
        {"window_events": 0},
        {"window_bytes": 2**41},
        {"message_bytes_max": 1},
        {"heartbeat_s": 0.9},
        *(
            {name: wrong}
            for name in (
                "ack_interval_s",
                "open_timeout_s",
                "reconnect_timeout_s",
                "close_timeout_s",
                "backoff_first_s",
                "backoff_most_s",
            )
            for wrong in (-1.0, math.nan)
        ),
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"1 to|64 KiB to|0 or more"):
        feedmux.SessionOptions(**wrong)


@over(
    ("wrong", "words"),
    [
        ({"window_events": 1e4}, "window_events is a whole number, not float"),
        ({"heartbeat_s": "5"}, "heartbeat_s is a number, not str"),
        ({"ack_interval_s": None}, "ack_interval_s is a number, not NoneType"),
    ],
)
def test_a_value_of_another_type_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        feedmux.SessionOptions(**wrong)


def test_the_bounds_themselves_are_possible() -> None:
    feedmux.SessionOptions(window_events=1, window_bytes=1, message_bytes_max=64 * 1024, heartbeat_s=1)
    feedmux.SessionOptions(window_events=2**31 - 1, window_bytes=2**40, message_bytes_max=64 << 20, heartbeat_s=60)
    assert feedmux.SessionOptions(reconnect_timeout_s=None).reconnect_timeout_s is None
    feedmux.SessionOptions(open_timeout_s=math.inf, reconnect_timeout_s=math.inf, close_timeout_s=0)


def test_a_wait_may_be_of_any_length_but_is_a_number() -> None:
    assert (wait_s(None), wait_s(math.inf), wait_s(1e300), wait_s(2), wait_s(-1)) == (None, None, None, 2, -1)
    for refused in (lambda: wait_s(math.nan), lambda: feedmux.Client("host:1", timeout_s=math.nan)):
        with pytest.raises(ValueError, match=r"nan|NaN"):
            refused()
    # For gRPC, a longer time is one that is over.
    client = feedmux.Client("host:1", timeout_s=math.inf)
    assert client._api.settings.timeout_s == 1e9
