"""Options of sessions: what cannot be is refused where it is given."""

from typing import Any

import pytest

import feedmux
from tests.tables import over


@over(
    "wrong",
    [
        {"window_events": 0},
        {"window_bytes": 2**41},
        {"message_bytes_max": 1},
        {"heartbeat_s": 0.9},
        {"backoff_first_s": -1.0},
        {"backoff_most_s": -1.0},
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"1 to|64 KiB to|negative"):
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
