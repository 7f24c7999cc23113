"""`mongod`: what a finished backlog costs mongod when 64 subscribers read it, beside one subscriber."""

from bench.backlog import load
from bench.readers import Contest, Reading
from bench.report import Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

EVENTS = 200_000
DIRECT_READERS = 4


async def run(settings: Settings) -> Result:
    count = settings.backlog(EVENTS, 100_000, 2_000)
    readers = settings.size(64, 64, 8)
    many: list[Reading] = []
    one: list[Reading] = []
    direct: list[Reading] = []
    async with Stage() as stage:
        backlog = load(stage.mongo_client(), count)
        contest = Contest(stage, backlog)
        await contest.by_feedmux("batches", 1)  # the oplog comes into mongod's cache
        for number in range(settings.runs):
            many.append(await contest.by_feedmux("batches", readers))
            one.append(await contest.by_feedmux("batches", 1))
            direct.append(await contest.by_pymongo(DIRECT_READERS, count, raw=True))
            seconds = [f"{each[-1].mongod_cpu_s:.2f}" for each in (many, one, direct)]
            progress(
                f"run {number + 1}: mongod CPU {seconds[0]} s for {readers} subscribers, {seconds[1]} s for one,"
                f" {seconds[2]} s for {DIRECT_READERS} watch()"
            )
    ratio = median_ratio([max(each.mongod_cpu_s, 0.01) for each in many], [max(e.mongod_cpu_s, 0.01) for e in one])
    figures = _figures(many)
    alternative = _figures(one)
    cpu_of_direct_s = medians([each.figures for each in direct])["mongod_cpu_us_per_event"] * count / 1e6
    figures[f"{readers}_direct_watch_mongod_cpu_s"] = cpu_of_direct_s * readers
    return Result(
        f"mongod: its CPU while a backlog of {count:,} events of {backlog.event_bytes:.0f} bytes is read",
        f"{readers} subscribers",
        "1 subscriber",
        figures,
        alternative,
        ratio,
        f"mongod CPU for {readers} subscribers ÷ for one, median of the runs' ratios",
        [Target("ratio", "at_most", 1.1, ratio)],
        [f"{readers} direct watch() are extrapolated from {DIRECT_READERS}, measured in the same runs"],
    )


def _figures(readings: list[Reading]) -> dict[str, float]:
    found = medians([{"mongod_cpu_s": each.mongod_cpu_s, **each.figures} for each in readings])
    return {name: found[name] for name in ("mongod_cpu_s", "elapsed_s", "events", "events_per_s")}
