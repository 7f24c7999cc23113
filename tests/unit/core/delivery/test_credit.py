"""Credit: it adds up, is clamped, and may be overdrawn by one event."""

import pytest

from feedmux_server.core.delivery.credit import BYTES_GRANT_MAX, EVENTS_GRANT_MAX, CreditLimits, CreditWindow
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from tests.tables import over


def test_credit_adds_up_to_the_server_s_maximum() -> None:
    window = CreditWindow(CreditLimits(events_max=10, bytes_max=100))
    assert not window.open
    window.grant(4, 40)
    window.grant(4, 40)
    assert (window.events, window.bytes, window.open) == (8, 80, True)
    window.grant(4, 40)
    assert (window.events, window.bytes) == (10, 100)
    window.grant(EVENTS_GRANT_MAX, BYTES_GRANT_MAX)
    assert (window.events, window.bytes) == (10, 100)


@over(
    ("events", "size", "field"),
    [
        (0, 1, "credit.events"),
        (-1, 1, "credit.events"),
        (EVENTS_GRANT_MAX + 1, 1, "credit.events"),
        (1, 0, "credit.bytes"),
        (1, -5, "credit.bytes"),
        (1, BYTES_GRANT_MAX + 1, "credit.bytes"),
    ],
)
def test_senseless_grants_change_nothing(events: int, size: int, field: str) -> None:
    window = CreditWindow(CreditLimits())
    with pytest.raises(FeedmuxError) as caught:
        window.grant(events, size)
    assert caught.value.reason is ErrorReason.CREDIT_INVALID
    assert caught.value.field == field
    assert (window.events, window.bytes) == (0, 0)


def test_no_credit_at_the_start_is_a_paused_stream() -> None:
    window = CreditWindow(CreditLimits())
    window.grant(0, 0, zero_allowed=True)
    assert not window.open
    with pytest.raises(FeedmuxError):
        window.grant(-1, 0, zero_allowed=True)


def test_debt_is_paid_by_the_next_grant() -> None:
    window = CreditWindow(CreditLimits())
    window.grant(5, 10)
    window.spend(1, 25)
    assert (window.bytes, window.open) == (-15, False)
    with pytest.raises(RuntimeError):
        window.spend(1, 1)
    window.grant(1, 15)
    assert not window.open
    window.grant(1, 1)
    assert (window.events, window.bytes, window.open) == (6, 1, True)


def test_more_events_than_granted_is_a_defect() -> None:
    window = CreditWindow(CreditLimits())
    window.grant(2, 10)
    with pytest.raises(RuntimeError):
        window.spend(3, 1)
