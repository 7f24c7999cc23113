"""An opening waits for the releases of its subscription, and for no others."""

import asyncio

from feedmux_server.rpc.lease_releases import LeaseReleases


async def test_the_newest_release_of_a_subscription_is_waited_for() -> None:
    releases, ends = LeaseReleases(), [asyncio.Event() for _ in range(2)]

    async def release(end: asyncio.Event) -> None:
        await end.wait()

    tasks = [asyncio.create_task(release(end)) for end in ends]
    for task in tasks:
        releases.add("team", "orders", task)
    await releases.done("team", "other")
    await releases.done("other", "orders")
    waiting = asyncio.create_task(releases.done("team", "orders"))
    ends[0].set()
    await tasks[0]
    await asyncio.sleep(0)
    assert (waiting.done(), len(releases)) == (False, 1)
    ends[1].set()
    await waiting
    assert len(releases) == 0
