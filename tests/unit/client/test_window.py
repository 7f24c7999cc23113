"""The credit window: how much is granted, when, and what violates it."""

from hypothesis import given
from hypothesis import strategies as st

from feedmux.window import CreditWindow, Grant


def nothing() -> int:
    return 0


def test_refills_when_a_quarter_was_taken() -> None:
    window = CreditWindow(100, 1000)
    window.open(0, 0)
    window.receive(60, 240, nothing)
    assert window.refill_events_at == 25
    assert window.refill_bytes_at == 250
    assert window.refill(24, 240) is None
    assert not window.is_due(24, 240)
    assert window.is_due(25, 100)
    assert window.refill(25, 100) == Grant(25, 100)
    assert not window.is_due(25, 100)
    assert window.refill_events_at == 50
    assert window.refill(49, 340) is None


def test_a_server_that_allows_less_than_the_one_before_is_granted_more() -> None:
    window = CreditWindow(100, 1000)
    window.open(0, 0)
    window.receive(5, 1500, lambda: 600)
    assert window.open(0, 0) == Grant(0, 0), "the bytes are used up"
    window.limit(10, 0)
    assert window.refill(5, 1500) == Grant(10, 1000)


def test_the_window_is_the_chosen_one_again_where_a_server_no_longer_limits_it() -> None:
    window = CreditWindow(100, 1000)
    window.open(0, 0)
    window.limit(10, 50)
    window.receive(10, 20, nothing)
    assert window.refill(10, 20) == Grant(10, 20)
    assert window.open(10, 20) == Grant(100, 1000)
    window.receive(40, 200, nothing)
    assert window.refill(50, 220) == Grant(40, 200)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 400), st.booleans()), max_size=60))
def test_never_stalls_and_never_exceeds(steps: list[tuple[int, int, bool]]) -> None:
    """Whatever sizes come: once everything is taken there is credit again, and what waits stays within the window."""
    window = CreditWindow(64, 4096)
    grant = window.open(0, 0)
    events_left, bytes_left = grant.events, grant.size_bytes
    received_events = received_bytes = taken_events = taken_bytes = 0
    for events, size, reconnect in steps:
        count = min(events, events_left)
        if count and bytes_left > 0:
            size_bytes = count * 5 + size
            overdraft = size_bytes - bytes_left
            size_bytes = min(size_bytes, bytes_left + 50) if overdraft > 50 else size_bytes
            window.receive(count, size_bytes, lambda: 51)
            received_events, received_bytes = received_events + count, received_bytes + size_bytes
            events_left, bytes_left = events_left - count, bytes_left - size_bytes
        assert received_events - taken_events <= 64
        if reconnect:
            grant = window.open(taken_events, taken_bytes)
            events_left, bytes_left = grant.events, grant.size_bytes
            continue
        taken_events, taken_bytes = received_events, received_bytes
        due = taken_events >= window.refill_events_at or taken_bytes >= window.refill_bytes_at
        more = window.refill(taken_events, taken_bytes)
        assert (more is not None) == due
        if more is not None:
            events_left, bytes_left = events_left + more.events, bytes_left + more.size_bytes
        assert events_left > 0
        assert bytes_left > 0
