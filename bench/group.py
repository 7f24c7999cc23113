"""`group`: eight members of a group with a millisecond of work for each event, beside one; and what an event costs."""

import os

from bench.members import Works, load
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

EVENTS = 20_000
BACKLOG_EVENTS = 100_000
KEYS = 5_000
MEMBERS = 8
WORK_S = 0.001


async def run(settings: Settings) -> Result:
    members = settings.size(MEMBERS, MEMBERS, 2)
    keys = settings.size(KEYS, KEYS, 50)
    many: list[Figures] = []
    one: list[Figures] = []
    drained: list[Figures] = []
    ordinary: list[Figures] = []
    async with Stage() as stage:
        works = Works(stage, load(stage.mongo_client(), settings.backlog(EVENTS, 5_000, 200), keys))
        for number in range(settings.runs):
            many.append(await works.in_group(members, WORK_S))
            one.append(await works.in_group(1, WORK_S))
            shown = [f"{each[-1]['events_per_s']:,.0f}" for each in (many, one)]
            progress(f"run {number + 1}: {members} members {shown[0]}, one {shown[1]} events/s")
    async with Stage() as stage:
        works = Works(stage, load(stage.mongo_client(), settings.backlog(BACKLOG_EVENTS, 20_000, 200), keys))
        for number in range(settings.runs):
            drained.append(await works.in_group(members))
            ordinary.append(await works.alone())
            shown = [f"{each[-1]['events_per_s']:,.0f}" for each in (drained, ordinary)]
            progress(f"run {number + 1}: without work {shown[0]}, without a group {shown[1]} events/s")
    figures, alternative = medians(many), medians(one)
    cheap, plain = medians(drained), medians(ordinary)
    figures |= {f"backlog_{name}": value for name, value in cheap.items()}
    alternative |= {f"backlog_{name}": value for name, value in plain.items()}
    extra_us = cheap["server_cpu_us_per_event"] - plain["server_cpu_us_per_event"]
    figures["group_server_cpu_us_per_event"] = extra_us
    ratio = median_ratio([each["events_per_s"] for each in many], [each["events_per_s"] for each in one])
    return Result(
        f"group: {members} members with {WORK_S * 1000:.0f} ms of work for each event of {keys:,} documents",
        f"{members} members",
        "1 member",
        figures,
        alternative,
        ratio,
        f"events/s of {members} members ÷ events/s of one, median of the runs' ratios",
        [
            Target("ratio", "at_least", 7.0, ratio),
            Target("group_server_cpu_us_per_event", "at_most", 5.0, extra_us),
            Target("backlog_events_per_s", "at_least", 50_000, figures["backlog_events_per_s"]),
        ],
        [
            "backlog: without work, beside one reader of an ordinary subscription that acks each event",
            f"cores allow: {len(os.sched_getaffinity(0))} cores that are never idle, at the CPU of these processes",
        ],
    )
