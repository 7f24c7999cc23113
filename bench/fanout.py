"""`fanout`: 64 subscribers read one backlog as raw events, beside 64 direct watch() over RawBSONDocument."""

from bench.backlog import load
from bench.readers import Contest, Reading
from bench.report import Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

EVENTS = 200_000
DIRECT_EVENTS = 20_000


async def run(settings: Settings) -> Result:
    count = settings.backlog(EVENTS, 50_000, 2_000)
    direct_count = min(count, settings.size(DIRECT_EVENTS, 5_000, 500))
    readers = settings.size(64, 64, 8)
    ours: list[Reading] = []
    inline: list[Reading] = []
    theirs: list[Reading] = []
    async with Stage() as stage:
        backlog = load(stage.mongo_client(), count)
        contest = Contest(stage, backlog)
        for number in range(settings.runs):
            ours.append(await contest.by_feedmux("batches", readers))
            theirs.append(await contest.by_pymongo(readers, direct_count, raw=True))
            inline.append(await contest.by_feedmux("batches inline", readers))
            rates = [f"{each[-1].figures['events_per_s']:,.0f}" for each in (ours, theirs, inline)]
            progress(f"run {number + 1}: feedmux {rates[0]}, watch() {rates[1]}, feedmux inline {rates[2]} events/s")
    figures, alternative = medians([each.figures for each in ours]), medians([each.figures for each in theirs])
    figures["inline_events_per_s"] = medians([each.figures for each in inline])["events_per_s"]
    figures["event_bytes"] = ours[0].size_bytes / ours[0].events
    alternative.pop("server_cpu_us_per_event")
    ratio = median_ratio([each.figures["events_per_s"] for each in ours], [t.figures["events_per_s"] for t in theirs])
    return Result(
        f"fanout: {readers} readers of one backlog of {count:,} events of {backlog.event_bytes:.0f} bytes",
        "feedmux, durable, raw batches, acked",
        f"{readers} × watch(), raw",
        figures,
        alternative,
        ratio,
        "events/s of all subscribers together ÷ events/s of all watch() together, median of the runs' ratios",
        [
            Target("ratio", "at_least", 20.0, ratio),
            Target("events_per_s", "at_least", 2e6, figures["events_per_s"]),
        ],
        [f"each watch() reads the first {direct_count:,} events"],
    )
