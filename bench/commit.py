"""`commit`: Redis commands a second with 64 subscriptions at 100,000 acked events/s in all, beside 1,000/s."""

import asyncio
from typing import Any

from redis.asyncio import Redis

from bench.backlog import FIRST_ID, find_padding
from bench.crew import Crew
from bench.latency import Live
from bench.live import acknowledge, write
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

SUBSCRIBERS = 64
FAST_RATE, SLOW_RATE = 100_000, 1_000
"""Acked events per second of all subscriptions together."""
SECONDS = 20
_PROCESSES = 2
_INSERTS_PER_S = 50
_APART = 3_000_000
_EDGE = 0.15
"""The time at the beginning and end of the run in which commands are not counted."""


async def run(settings: Settings) -> Result:
    seconds = settings.size(SECONDS, 8, 2)
    subscribers = settings.size(SUBSCRIBERS, SUBSCRIBERS, 8)
    fast: list[Figures] = []
    slow: list[Figures] = []
    async with Stage() as stage:
        with stage.mongo_client() as client:
            padding = find_padding(client)
        lives = [
            Live(stage, padding, FAST_RATE / SUBSCRIBERS, seconds),
            Live(stage, padding, SLOW_RATE / SUBSCRIBERS, seconds, FIRST_ID + _APART),
        ]
        for number in range(settings.runs):
            fast.append(await _figures(lives[0], subscribers, seconds, number))
            slow.append(await _figures(lives[1], subscribers, seconds, number))
            shown = [
                f"{each[-1]['redis_commands_per_s']:.0f} at {each[-1]['acked_per_s']:,.0f}/s" for each in (fast, slow)
            ]
            progress(f"run {number + 1}: commands/s {shown[0]}, {shown[1]}")
    figures, alternative = medians(fast), medians(slow)
    rates = [[each["redis_commands_per_s"] for each in side] for side in (fast, slow)]
    ratio = median_ratio(*rates)
    return Result(
        f"commit: {subscribers} subscriptions that ack every batch, for {seconds} s",
        f"{FAST_RATE * subscribers // SUBSCRIBERS:,} acked events/s",
        f"{SLOW_RATE * subscribers // SUBSCRIBERS:,} acked events/s",
        figures,
        alternative,
        ratio,
        "Redis commands/s at the higher rate ÷ at the lower, median of the runs' ratios",
        [
            Target("ratio", "at_most", 1.5, ratio),
            Target("acked_per_s", "at_least", 0.95 * FAST_RATE * subscribers / SUBSCRIBERS, figures["acked_per_s"]),
        ],
        ["commands inside the scripts count as commands"],
    )


async def _figures(live: Live, subscribers: int, seconds: float, number: int) -> Figures:
    stage = live.stage
    names = await live.subscribe(subscribers, f"commit {live.count} {number}")
    followers = [
        (acknowledge, live.following(stage.endpoint, *names[process::_PROCESSES])) for process in range(_PROCESSES)
    ]
    redis = Redis.from_url(stage.redis.url)
    try:
        async with Crew([(write, live.writing(max(1, round(live.rate / _INSERTS_PER_S)))), *followers]) as crew:
            crew.go()
            await asyncio.sleep(seconds * _EDGE)
            before, cpu = await _commands(redis), stage.redis.process.cpu_seconds()
            counted_s = seconds * (1 - 2 * _EDGE)
            await asyncio.sleep(counted_s)
            commands = await _commands(redis) - before
            redis_cpu_s = stage.redis.process.cpu_seconds() - cpu
            written, *_ = await crew.results()
    finally:
        await redis.aclose()
    return {
        "redis_commands_per_s": commands / counted_s,
        "redis_cpu_ms_per_s": redis_cpu_s * 1000 / counted_s,
        "acked_per_s": subscribers * live.count / written.elapsed_s,
        "acked": subscribers * live.count,
    }


async def _commands(redis: Redis) -> int:
    found: dict[str, Any] = await redis.info("commandstats")
    return sum(each["calls"] for name, each in found.items() if name not in ("cmdstat_info", "cmdstat_client|setinfo"))
