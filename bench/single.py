"""`single`: one subscriber reads a backlog event by event, beside pymongo's watch()."""

from bench.backlog import load
from bench.readers import Contest, Reading
from bench.report import Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

EVENTS = 200_000


async def run(settings: Settings) -> Result:
    count = settings.backlog(EVENTS, 50_000, 2_000)
    ours: list[Reading] = []
    theirs: list[Reading] = []
    async with Stage() as stage:
        backlog = load(stage.mongo_client(), count)
        contest = Contest(stage, backlog)
        for number in range(settings.runs):
            ours.append(await contest.by_feedmux("events", 1))
            theirs.append(await contest.by_pymongo(1, count, raw=False))
            progress(
                f"run {number + 1}: feedmux {ours[-1].figures['events_per_s']:,.0f},"
                f" watch() {theirs[-1].figures['events_per_s']:,.0f} events/s"
            )
    figures, alternative = medians([each.figures for each in ours]), medians([each.figures for each in theirs])
    alternative.pop("server_cpu_us_per_event")
    ratio = median_ratio([1 / each.elapsed_s for each in ours], [1 / each.elapsed_s for each in theirs])
    return Result(
        f"single: one loop over a backlog of {count:,} events of {backlog.event_bytes:.0f} bytes",
        "feedmux, .document and ack",
        "pymongo watch(), dicts",
        figures,
        alternative,
        ratio,
        "events/s of feedmux ÷ events/s of watch(), median of the runs' ratios",
        [Target("ratio", "at_least", 1.7, ratio), Target("ratio", "at_least", 2.0, ratio)],
    )
