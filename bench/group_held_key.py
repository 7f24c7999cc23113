"""`group-held-key`: the latency of a group's other keys while some keys are held, and while a member comes and goes."""

import asyncio
import time
from dataclasses import dataclass, replace

import feedmux
from bench.backlog import find_padding
from bench.crew import Crew, Gate, Job
from bench.latency import Live, latencies
from bench.live import Followed, write
from bench.readers import CheckFailed, feed_of
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

RATE = 250
SECONDS = 20
MEMBERS = 8
KEYS = 1_000
HELD = 50
_HELD_FOR_S = 3_600.0
_STAYS_S = 0.5
_DRAIN_S = 2.0
_WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class Membership:
    """The task of a member. The keys up to `held_below` fail at their first event, and then wait for an hour."""

    address: str
    name: str
    held_below: int
    comes_and_goes: bool = False


def follow_in_group(gate: Gate, task: Membership) -> tuple[int, Followed]:
    """Process events until the parent says stop. Return their number, and the latencies after the first half second."""
    return asyncio.run(_follow(gate, task))


async def _follow(gate: Gate, task: Membership) -> tuple[int, Followed]:
    handled, times = 0, list[int]()
    warm_ns = 0

    async def handle(event: feedmux.MemberEvent) -> None:
        nonlocal handled
        document = event.document["fullDocument"]
        if document["_id"] < task.held_below:
            raise feedmux.RetryAfter(_HELD_FOR_S)
        handled += 1
        if document["sent_ns"] > warm_ns:
            times.append(time.monotonic_ns() - document["sent_ns"])

    async with feedmux.AsyncClient(task.address) as client:
        await client.get_subscription(task.name)
        warm_ns = int((await gate.wait_async() + _WARM_UP_S) * 1e9)
        cpu_s = time.process_time()
        stopped = asyncio.create_task(asyncio.to_thread(gate.stopped.wait))
        while not stopped.done():
            member = await client.subscription(task.name).join()
            running = asyncio.create_task(member.run(handle))
            await asyncio.wait([stopped], timeout=_STAYS_S if task.comes_and_goes else None)
            await member.close()
            await running
    return handled, Followed(times, time.process_time() - cpu_s)


async def run(settings: Settings) -> Result:
    seconds, members = settings.size(SECONDS, 10, 1), settings.size(MEMBERS, MEMBERS, 2)
    held: list[Figures] = []
    guests: list[Figures] = []
    calm: list[Figures] = []
    async with Stage() as stage:
        with stage.mongo_client() as client:
            live = Live(stage, find_padding(client), RATE, seconds)
        for number in range(settings.runs):
            calm.append(await _figures(live, members))
            held.append(await _figures(live, members, held=HELD))
            guests.append(await _figures(live, members, guests=1))
            shown = [f"{each[-1]['p99_ms']:.2f}" for each in (calm, held, guests)]
            progress(f"run {number + 1}: p99 {shown[0]} ms; {HELD} keys held {shown[1]}; a guest {shown[2]}")
    alone = [each["p99_ms"] for each in calm]
    ratio = median_ratio([each["p99_ms"] for each in held], alone)
    guest_ratio = median_ratio([each["p99_ms"] for each in guests], alone)
    figures = medians(held) | {
        f"guest_{name}": value for name, value in medians(guests).items() if name in ("p50_ms", "p99_ms")
    }
    return Result(
        f"group-held-key: {members} members, {RATE} changes/s of {KEYS:,} documents for {seconds} s",
        f"{HELD} keys held",
        "none held",
        figures | {"guest_ratio": guest_ratio},
        medians(calm),
        ratio,
        "p99 of the other keys ÷ p99 with no key held, median of the runs' ratios",
        [Target("ratio", "at_most", 1.1, ratio), Target("guest_ratio", "at_most", 1.1, guest_ratio)],
        [f"guest: no key is held, and another member joins and closes every {_STAYS_S:g} s"],
    )


async def _figures(live: Live, members: int, *, held: int = 0, guests: int = 0) -> Figures:
    writing = replace(live.writing(per_insert=1), keys=KEYS)
    name = f"group-{writing.first_id}"
    async with feedmux.AsyncClient(live.stage.endpoint) as client:
        await client.create_subscription(name, feed_of(name), start="latest", group=feedmux.Group())
    task = Membership(live.stage.endpoint, name, writing.first_id + held)
    jobs: list[tuple[Job, Membership]] = [(follow_in_group, task)] * members
    jobs += [(follow_in_group, replace(task, comes_and_goes=True))] * guests
    async with Crew([(write, writing), *jobs]) as crew:
        crew.go()
        [written] = await crew.results([0])
        await asyncio.sleep(_DRAIN_S)
        crew.stop()
        done = await crew.results(range(1, 1 + len(jobs)))
    handled = sum(count for count, _ in done)
    wanted = sum((writing.first_id + number) % KEYS >= held for number in range(writing.count))
    if handled != wanted:
        raise CheckFailed(f"{handled} events of keys that are not held were handled, of {wanted}")
    return latencies(written, [followed for _, followed in done])
