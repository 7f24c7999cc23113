"""The options of a member, and the arguments of `run`."""

from typing import Any

import pytest

import feedmux
from feedmux.member_base import check_run, member_options
from tests.tables import over


def test_a_member_has_defaults_of_its_own() -> None:
    options = member_options(feedmux.SessionOptions(window_events=7, heartbeat_s=3.0), {})
    assert (options.window_events, options.ack_interval_s, options.heartbeat_s) == (64, 0.02, 3.0)
    assert member_options(feedmux.SessionOptions(), {"window_events": 8}).window_events == 8
    with pytest.raises(ValueError, match="BSON"):
        member_options(feedmux.SessionOptions(), {"format": "extended_json_relaxed"})


@over(
    ("arguments", "error"),
    [
        (("f", 1, None), TypeError),
        ((print, 0, None), ValueError),
        ((print, 1.0, None), TypeError),
        ((print, 1, 0), ValueError),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_run(*arguments, asynchronous=True)
