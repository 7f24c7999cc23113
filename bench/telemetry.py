"""`telemetry`: the server's CPU for each event with metrics on and read, beside the same server without them.

Two loads, because they cost different things: a backlog (a thousand events in a message) and live events (one or a few
in a message). The sides take turns and change places from pair to pair; each begins with a server started again.
"""

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from statistics import median
from typing import Final

from bench.backlog import FIRST_ID, load
from bench.crew import Crew
from bench.latency import Live
from bench.live import acknowledge, write
from bench.readers import Contest
from bench.report import Result, Target, median_ratio, progress
from bench.settings import Settings
from bench.stage import Stage

PAIRS: Final = 5
EVENTS: Final = 200_000
READERS: Final = 16
RATE: Final = 1_000
SECONDS: Final = 15
SCRAPE_EVERY_S: Final = 5.0
"""Three times as often as Prometheus does by default."""
_PROCESSES: Final = 2
_APART: Final = 3_000_000
_PER_INSERT: Final = 5


Measure = Callable[[], Awaitable[float]]
"""The server's CPU time per event, in microseconds."""


async def run(settings: Settings) -> Result:
    pairs = settings.runs if settings.tiny else max(PAIRS, settings.runs)
    count = settings.backlog(EVENTS, 50_000, 2_000)
    seconds = settings.size(SECONDS, 5, 1)
    readers = settings.size(READERS, READERS, 4)
    async with Stage() as stage:
        backlog = load(stage.mongo_client(), count)
        contest = Contest(stage, backlog)
        live = Live(stage, backlog.padding, RATE, seconds, FIRST_ID + _APART)

        async def read_backlog() -> float:
            return (await contest.by_feedmux("batches", readers)).figures["server_cpu_us_per_event"]

        async def follow() -> float:
            return await _follow(live, readers)

        # One after the other: events that are written live come after the backlog.
        on, off = await _pairs(stage, "backlog", read_backlog, pairs)
        live_on, live_off = await _pairs(stage, "live", follow, pairs)
    ratios = {"backlog_ratio": median_ratio(on, off), "live_ratio": median_ratio(live_on, live_off)}
    return Result(
        f"telemetry: {readers} readers of {count:,} events, and of {RATE:,}/s for {seconds} s",
        f"metrics on, read every {SCRAPE_EVERY_S:g} s",
        "off",
        {"backlog_cpu_us_per_event": median(on), "live_cpu_us_per_event": median(live_on), **ratios},
        {"backlog_cpu_us_per_event": median(off), "live_cpu_us_per_event": median(live_off)},
        max(ratios.values()),
        f"server CPU per event, on ÷ off, the worse of the two loads' medians of {pairs} pairs",
        [Target(name, "at_most", 1.05, ratio) for name, ratio in ratios.items()],
    )


async def _pairs(stage: Stage, name: str, measure: Measure, pairs: int) -> tuple[list[float], list[float]]:
    """Measure pairs of runs, with and without metrics."""
    sides: dict[bool, list[float]] = {True: [], False: []}
    for number in range(pairs):
        for metrics in (True, False) if number % 2 == 0 else (False, True):
            await stage.restart_server(metrics=metrics)
            async with _scraped(stage.metrics_url if metrics else ""):
                sides[metrics].append(await measure())
        progress(
            f"pair {number + 1}, {name}: {sides[True][-1]:.3g} µs for an event with, {sides[False][-1]:.3g} without"
        )
    return sides[True], sides[False]


async def _follow(live: Live, readers: int) -> float:
    names = await live.subscribe(readers, f"telemetry {time.monotonic()}")
    followers = [
        (acknowledge, live.following(live.stage.endpoint, *names[process::_PROCESSES])) for process in range(_PROCESSES)
    ]
    async with Crew([(write, live.writing(_PER_INSERT)), *followers]) as crew:
        before = live.stage.cpu()
        crew.go()
        await crew.results()
        used = live.stage.cpu() - before
    return used.server * 1e6 / (live.count * readers)


@asynccontextmanager
async def _scraped(url: str) -> AsyncIterator[None]:
    """Read the metrics page at intervals, as Prometheus would."""

    def read() -> None:
        with urllib.request.urlopen(url, timeout=10) as answer:
            answer.read()

    async def scrape() -> None:
        while True:
            await asyncio.to_thread(read)
            await asyncio.sleep(SCRAPE_EVERY_S)

    task = asyncio.create_task(scrape()) if url else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
