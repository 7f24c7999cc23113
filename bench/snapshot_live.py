"""`snapshot-live`: the latency of a live subscriber while ten copies of other documents run, beside none."""

from bench.backlog import find_padding
from bench.copies import Copying, Documents, copy_again
from bench.crew import Crew
from bench.latency import Live, latencies
from bench.live import write
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

RATE = 100
SECONDS = 20
COPIES = 10


async def run(settings: Settings) -> Result:
    seconds, copies = settings.size(SECONDS, 5, 1), settings.size(COPIES, COPIES, 2)
    documents = Documents("documents", settings.size(200_000, 50_000, 1_000), 500)
    beside: list[Figures] = []
    alone: list[Figures] = []
    async with Stage() as stage:
        with stage.mongo_client() as client:
            live = Live(stage, find_padding(client), RATE, seconds)
            documents.load(client)
        for number in range(settings.runs):
            beside.append(await _figures(live, Copying(stage.endpoint, documents, copies=copies)))
            alone.append(await _figures(live, None))
            shown = [f"p99 {each[-1]['p99_ms']:.2f} ms" for each in (beside, alone)]
            progress(f"run {number + 1}: beside {copies} copies {shown[0]}, alone {shown[1]}")
    ratio = median_ratio([each["p99_ms"] for each in beside], [each["p99_ms"] for each in alone])
    return Result(
        "snapshot-live",
        f"snapshot-live: a subscriber at {RATE} events/s for {seconds} s, copies of {documents.count:,} documents",
        f"beside {copies} copies",
        "alone",
        medians(beside),
        medians(alone),
        ratio,
        "p99 beside the copies ÷ p99 alone, median of the runs' ratios",
        [Target("ratio", "at_most", 1.2, ratio)],
    )


async def _figures(live: Live, copying: Copying | None) -> Figures:
    [name] = await live.subscribe(1)
    jobs = [(write, live.writing(per_insert=1)), live.by_feedmux(name)]
    async with Crew([*jobs, *([(copy_again, copying)] if copying is not None else ())]) as crew:
        crew.go()
        written, followed = await crew.results(range(2))
        copied = 0
        if copying is not None:
            crew.stop()
            [copied] = await crew.results([2])
    return latencies(written, [followed]) | {"copied_per_s": copied / written.elapsed_s}
