"""Rates: a burst is free, a debt is waited for, and a flood is rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.limits.quota import Quotas
from feedmux_server.core.limits.rates import Rates, TokenBucket
from tests.unit.core.limits.quota_support import refused


def test_calls_in_a_loop_are_slowed_down_and_calls_in_a_flood_refused() -> None:
    rates = Rates(Quotas(requests_per_s=2), 0.0)
    assert [rates.request(0.0) for _ in range(10)] == [0.0] * 10  # five seconds' worth at once
    waits = [rates.request(0.0) for _ in range(2)]
    assert waits == pytest.approx([0.0, 0.5], abs=0.01)
    error = refused(lambda: (rates.request(0.0), rates.request(0.0)))
    assert error.metadata["quota"] == "requests_per_s"
    assert error.retry_after_s == pytest.approx(1.5, abs=0.5)
    # A caller that waits as long as the server asks keeps to the rate, and is never rejected.
    now_s, calls = 10.0, 0
    while now_s < 110.0:
        now_s += rates.request(now_s)
        calls += 1
    assert calls == pytest.approx(200, rel=0.1)


def test_one_delivery_may_overdraw_a_rate_and_its_debt_is_waited_for() -> None:
    rates = Rates(Quotas(events_per_s=100, bytes_per_s=1_000_000), 0.0)
    assert rates.delivery_wait_s(0.0) == 0
    rates.deliver(400, 10, 0.0)
    assert rates.delivery_wait_s(0.0) == pytest.approx(3.0, abs=0.01)
    assert rates.delivery_wait_s(2.0) == pytest.approx(1.0, abs=0.01)
    assert rates.delivery_wait_s(3.1) == 0
    rates.deliver(1, 2_000_000, 3.1)
    assert rates.delivery_wait_s(3.1) == pytest.approx(1.0, abs=0.01)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 500)), min_size=1, max_size=60))
def test_a_bucket_never_gives_more_than_its_rate_allows(takings: list[tuple[float, int]]) -> None:
    rate, now_s, taken, largest = 100.0, 0.0, 0, 0
    bucket = TokenBucket(rate, 1.0, now_s)
    for pause_s, amount in takings:
        now_s += pause_s
        now_s += bucket.wait_s(now_s)
        assert bucket.wait_s(now_s) == 0
        bucket.take(amount, now_s)
        taken, largest = taken + amount, max(largest, amount)
    assert taken <= rate * (now_s + 1.0) + largest


def test_messages_that_are_sent_have_a_rate() -> None:
    """A feed whose batches have one event turns each event into a message."""
    rates = Rates(Quotas(messages_per_s=10), 0.0)
    for _ in range(20):  # two seconds' worth at once
        assert rates.delivery_wait_s(0.0) == 0.0
        rates.deliver(1, 100, 0.0)
    assert rates.delivery_wait_s(0.0) > 0.0
    assert rates.message(0.0) == 0.0, "messages in one direction do not slow down the other"
    rates.deliver(1000, 10, 0.2)
    assert rates.delivery_wait_s(0.2) == 0.0, "it counts messages, not events"


def test_messages_and_reads_have_rates_of_their_own() -> None:
    rates = Rates(Quotas(messages_per_s=10, reads_per_s=10), 0.0)
    assert [rates.message(0.0) for _ in range(19)] == [0.0] * 19  # two seconds' worth at once
    assert rates.message(0.0) > 0.0
    assert rates.read_wait_s(0.0) == 0.0
    rates.read(10.5, 0.0)
    assert rates.read_wait_s(0.0) == pytest.approx(0.05, abs=0.01)
    assert rates.delivery_wait_s(0.0) == 0.0


def test_the_extra_cost_of_a_call_delays_the_next_calls() -> None:
    rates = Rates(Quotas(requests_per_s=10), 0.0)
    rates.charge(55, 0.0)
    assert rates.request(0.0) == pytest.approx(0.5, abs=0.01)
