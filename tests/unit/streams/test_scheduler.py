"""Turns of the event loop between tenants."""

import asyncio
from collections import Counter

from feedmux_server.streams.scheduler import CHUNK_BYTES, GROUP_EVENT_BYTES, Scheduler
from tests.tables import over

BUDGET = 1000_000


async def test_while_there_is_no_crowd_nobody_waits() -> None:
    turns = Scheduler(BUDGET)
    crowded = []
    for _ in range(2):
        turns.spend(BUDGET // 2)
        crowded.append(turns.crowded)
    await asyncio.sleep(0)
    crowded.append(turns.crowded)
    assert crowded == [False, True, False]


async def test_a_tenant_with_many_does_not_crowd_out_one_with_few() -> None:
    turns = Scheduler(BUDGET)
    order: list[str] = []

    async def send(tenant: str, count: int) -> None:
        for _ in range(count):
            if turns.crowded:
                await turns.wait(tenant)
            order.append(tenant)
            turns.spend(BUDGET // 4)
            await asyncio.sleep(0)

    loud = [asyncio.create_task(send("loud", 20)) for _ in range(100)]
    for _ in range(20):
        await asyncio.sleep(0)
    begun = len(order)
    await send("quiet", 20)
    met = Counter(order[begun:])
    assert met["quiet"] == 20
    # A round admits four tasks, and a task that has just had a turn may miss the next round.
    assert met["loud"] <= 8 * 20
    await asyncio.gather(*loud)
    assert Counter(order) == {"loud": 2000, "quiet": 20}


async def test_one_who_left_while_waiting_holds_up_nobody() -> None:
    turns = Scheduler(BUDGET)
    turns.spend(BUDGET)
    gone = [asyncio.create_task(turns.wait("a")) for _ in range(10)]
    here = asyncio.create_task(turns.wait("b"))
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    async with asyncio.timeout(60):
        await here
    for _ in range(3):
        await asyncio.sleep(0)
    assert not turns.crowded


@over("large", [{"group_events": BUDGET // GROUP_EVENT_BYTES}, {"chunks": BUDGET // CHUNK_BYTES + 1}])
async def test_a_round_has_as_many_deliveries_as_its_budget_however_large_they_are(large: dict[str, int]) -> None:
    turns = Scheduler(BUDGET)
    turns.spend(BUDGET)
    admitted = 0

    async def send() -> None:
        nonlocal admitted
        await turns.wait("a")
        admitted += 1
        turns.spend(0, **large)

    sending = [asyncio.create_task(send()) for _ in range(10)]
    before, most = 0, 0
    while not all(each.done() for each in sending):
        await asyncio.sleep(0)
        before, most = admitted, max(most, admitted - before)
    assert (admitted, most) == (10, 1)
