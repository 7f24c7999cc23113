"""`snapshot-live`: the latency of a live subscriber while ten copies of other documents run, beside none; and that of a
bare `watch()` while two bare `find`s of the same documents run, which is what the machine gives without feedmux."""

from bench.backlog import find_padding
from bench.copies import Copying, Documents, copy_again, find_again
from bench.crew import Crew, Job
from bench.latency import Live, latencies
from bench.live import Following, write
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

RATE = 100
SECONDS = 20
COPIES = 10
FINDS = 2
"""As many as the server reads documents at a time (`history_reads`)."""


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
            copying = copy_again, Copying(stage.endpoint, documents, copies=copies)
            finding = find_again, Copying(stage.mongo.uri, documents, copies=FINDS)
            figures = await _figures(live, live.by_feedmux(*await live.subscribe(1)), copying)
            finds = await _figures(live, live.by_pymongo(), finding)
            beside.append(figures | {f"watch_beside_finds_{name}": finds[name] for name in ("p99_ms", "insert_p99_ms")})
            alone.append(await _figures(live, live.by_feedmux(*await live.subscribe(1))))
            shown = [f"p99 {each[-1]['p99_ms']:.2f} ms" for each in (beside, alone)]
            progress(f"run {number + 1}: beside {copies} copies {shown[0]}, alone {shown[1]}")
    ratio = median_ratio([each["p99_ms"] for each in beside], [each["p99_ms"] for each in alone])
    return Result(
        f"snapshot-live: a subscriber at {RATE} events/s for {seconds} s, copies of {documents.count:,} documents",
        f"beside {copies} copies",
        "alone",
        medians(beside),
        medians(alone),
        ratio,
        "p99 beside the copies ÷ p99 alone, median of the runs' ratios",
        [Target("ratio", "at_most", 1.2, ratio)],
    )


async def _figures(
    live: Live, follower: tuple[Job, Following], beside: tuple[Job, Copying] | None = None
) -> dict[str, float]:
    async with Crew([(write, live.writing(per_insert=1)), follower, *([beside] if beside is not None else ())]) as crew:
        cpu = live.stage.cpu()
        crew.go()
        written, followed = await crew.results(range(2))
        used, done = live.stage.cpu() - cpu, 0
        if beside is not None:
            crew.stop()
            [done] = await crew.results([2])
    return latencies(written, [followed]) | {
        "copied_per_s": done / written.elapsed_s,
        "mongod_cores": used.mongod / written.elapsed_s,
        "server_cores": used.server / written.elapsed_s,
    }
