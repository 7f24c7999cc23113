"""When an upstream tries again after a failure."""

from typing import cast

from pymongo.errors import AutoReconnect

from feedmux_server.source.reader import Failed
from feedmux_server.streams.upstream import Reader, TraceContext, Upstream
from feedmux_server.telemetry.observer import NOBODY


def failed(*, at_once: bool = True) -> Failed:
    return Failed(AutoReconnect(), at_once=at_once)


def upstream() -> Upstream:
    return Upstream(cast(Reader, None), NOBODY, TraceContext("main", {}, "call"))


def test_only_the_first_attempt_after_a_success_is_made_at_once() -> None:
    up = upstream()
    assert up.retry_delay_s(failed()) == 0.0
    delays = [up.retry_delay_s(failed()) for _ in range(20)]
    bounds = [min(10.0, 0.2 * 2**n) for n in range(20)]
    assert all(bound / 2 <= delay <= bound for delay, bound in zip(delays, bounds, strict=True)), delays


def test_an_error_that_needs_time_is_never_tried_again_at_once() -> None:
    assert 0.1 <= upstream().retry_delay_s(failed(at_once=False)) <= 0.2


def test_an_answer_of_mongodb_ends_the_failure() -> None:
    up = upstream()
    for _ in range(10):
        up.retry_delay_s(failed())
    up.answered()
    assert up.failure is None
    assert up.retry_delay_s(failed()) == 0.0
    assert up.retry_delay_s(failed()) <= 0.2
