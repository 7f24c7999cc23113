"""What one call may send: its quotas, its turn and its room are the tenant's."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from feedmux_server.core.delivery.key_runs import Runs
from feedmux_server.core.limits.account import Accounts
from feedmux_server.core.limits.memory import Pool
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.sessions.quota_gate import QuotaGate
from feedmux_server.sessions.send_gate import SendGate
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.scheduler import Scheduler
from feedmux_server.streams.wakeup import Wakeup
from tests.unit.core.delivery.streams_support import mark
from tests.unit.sessions.test_quota_gate import Recorded, delivery
from tests.virtual_time import in_virtual_time

QUOTAS = Quotas(events_per_s=10, outstanding_bytes=100)


def manager_with(pool: Pool, turns: Scheduler) -> StreamManager:
    accounts = Accounts(lambda _: QUOTAS, lambda: 0.0)
    memory = SimpleNamespace(unsent=pool)
    return cast(
        StreamManager, SimpleNamespace(accounts=accounts, memory=memory, turns=turns, renderers=SimpleNamespace())
    )


def gate_of(manager: StreamManager, signal: Wakeup, *, holds: bool = True) -> SendGate:
    return SendGate(manager, "a", 100, QuotaGate(manager.accounts.of("a"), signal, holds=holds), signal)


@pytest.mark.parametrize(("holds", "outstanding"), [(True, 60), (False, 0)])
@in_virtual_time
async def test_a_delivery_counts_for_the_tenants_rate_and_turn(holds: bool, outstanding: int) -> None:
    manager = manager_with(Pool(1000), Scheduler(60))
    gates = [gate_of(manager, Wakeup(), holds=holds) for _ in range(2)]
    gates[0].sends(delivery(1, 15, 60))
    assert gates[1].quota.wait_s(0.0) == pytest.approx(0.5, abs=0.01), "the rate is the tenant's, not the call's"
    assert manager.accounts.of("a").outstanding.bytes == outstanding
    assert manager.turns.crowded
    done = asyncio.create_task(gates[1].turn())
    await asyncio.sleep(0)
    assert not done.done()
    await done


@in_virtual_time
async def test_a_call_that_ends_gives_back_what_it_holds() -> None:
    pool, woken = Pool(1000), list[str]()
    manager = manager_with(pool, Scheduler())
    one, other = (gate_of(manager, Recorded(woken, name)) for name in "ab")
    one.outbox.hold(pool.room("a"))
    one.sends(delivery(1, 1, 100))
    other.outbox.wait()
    assert other.quota.wait_s(0.0) > 0
    one.close()
    assert (pool.bytes, manager.accounts.of("a").outstanding.bytes) == (0, 0)
    assert "b" in woken
    assert other.quota.wait_s(0.0) == 0


@in_virtual_time
async def test_small_events_of_a_group_cost_more_of_a_turn_than_their_bytes() -> None:
    """A thousand hold the event loop for 3 ms: others have their turn before the next thousand."""
    for found, crowded in (
        (delivery(1, 1_000, 300_000), False),
        (Runs(1, 1_000, (), 300_000, 300_000, mark(1), 0.0, runs=[1_000], attempts=[]), True),
    ):
        manager = manager_with(Pool(1000), Scheduler())
        gate_of(manager, Wakeup()).sends(found)
        assert manager.turns.crowded is crowded
