"""What a tenant's quotas allow one session to receive, and what the session returns."""

import logging
from typing import cast

import pytest

from feedmux_server.core.delivery.ack_tracker import ENTRIES_AT_ONCE
from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.limits.account import Account
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.sessions.quota_gate import QuotaGate
from feedmux_server.streams.wakeup import Wakeup
from tests.unit.core.delivery.streams_support import mark


class Recorded(Wakeup):
    """A wake-up that records when it is set."""

    def __init__(self, woken: list[str], name: str = "woken") -> None:
        super().__init__()
        self._woken = woken
        self._name = name

    def set(self) -> None:
        self._woken.append(self._name)


def delivery(first: int, count: int, size: int) -> Delivery:
    return Delivery(first, count, (), size, size, mark(first + count), 0.0)


def test_a_session_without_acks_is_bounded_by_rates_only() -> None:
    account = Account("team", Quotas(events_per_s=10, outstanding_bytes=1), 0.0)
    gate = QuotaGate(account, Wakeup(), holds=False)
    gate.sent(delivery(1, 15, 1_000), 0.0)
    assert account.outstanding.bytes == 0
    account.outstanding.hold(10)  # of another session
    assert gate.wait_s(0.0) == pytest.approx(0.5, abs=0.01)
    assert gate.wait_s(1.0) == 0.0


def test_acks_return_what_is_outstanding_delivery_by_delivery() -> None:
    woken: list[str] = []
    account = Account("team", Quotas(outstanding_bytes=100), 0.0)
    gate = QuotaGate(account, Recorded(woken), holds=True)
    gate.sent(delivery(1, 3, 60), 0.0)
    gate.sent(delivery(4, 2, 60), 0.0)
    assert gate.wait_s(0.0) > 0.0
    gate.acked(2)
    assert (account.outstanding.bytes, woken) == (120, []), "the delivery is acknowledged with its last event"
    gate.acked(3)
    assert (account.outstanding.bytes, woken) == (60, ["woken"])
    assert gate.wait_s(0.0) == 0.0
    gate.close()
    assert account.outstanding.bytes == 0


def test_an_ack_of_many_deliveries_has_parts() -> None:
    account = Account("team", Quotas(outstanding_bytes=100), 0.0)
    gate = QuotaGate(account, Wakeup(), holds=True)
    for number in range(2 * ENTRIES_AT_ONCE + 10):
        gate.sent(delivery(2 * number + 1, 2, 1), 0.0)
    last = 4 * ENTRIES_AT_ONCE + 20
    parts = list[int]()
    while not parts or parts[-1] != last:
        parts.append(gate.part_of_ack(last))
        gate.acked(parts[-1])
    assert parts == [2 * ENTRIES_AT_ONCE, 4 * ENTRIES_AT_ONCE, last]
    assert account.outstanding.bytes == 0


def test_a_backlog_at_its_bound_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    account = Account("team", Quotas(outstanding_bytes=100), 0.0)
    account.outstanding.retain(100)
    gates = [QuotaGate(account, Wakeup(), holds=True) for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        for gate in gates:
            assert gate.wait_s(0.0) > 0.0
    (record,) = caplog.records
    assert (cast(str, record.__dict__["tenant"]), record.__dict__["backlog_bytes"]) == ("team", 100)


def test_a_session_that_ends_while_it_waits_is_not_kept() -> None:
    """Nobody may ever acknowledge, and its tenant opens and leaves sessions all the time."""
    woken: list[str] = []
    account = Account("team", Quotas(outstanding_bytes=100), 0.0)
    account.outstanding.hold(100)  # of another session
    gates = [QuotaGate(account, Recorded(woken, str(number)), holds=True) for number in range(3)]
    for gate in gates:
        assert gate.wait_s(0.0) > 0.0
    for gate in (gates[0], gates[2]):
        gate.close()
    account.outstanding.release(100)
    assert woken == ["1"]
