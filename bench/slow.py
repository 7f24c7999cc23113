"""`slow`: the latency of 15 subscribers and the server's memory while the 16th is stopped, beside none stopped."""

from bench.backlog import load
from bench.crew import Crew
from bench.latency import FOLLOWERS, RATE, Live, latencies
from bench.live import write
from bench.measure import MIB, watched
from bench.readers import Contest
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

SECONDS = 30
RING_EVENTS = 150_000
"""More events than a ring holds: they fill the ring first, so that later memory growth is not the ring's."""
_KEEP_S = 300.0
_COMMENT = "slow"


async def run(settings: Settings) -> Result:
    seconds = settings.size(SECONDS, 8, 1)
    followers = settings.size(FOLLOWERS, FOLLOWERS, 3)
    rate = settings.size(RATE, RATE, 200)
    stopped: list[Figures] = []
    none: list[Figures] = []
    # There are no readers between the runs, but the stream and its full ring have to stay.
    async with Stage({"unused_stream_s": _KEEP_S}) as stage:
        backlog = load(stage.mongo_client(), settings.backlog(RING_EVENTS, RING_EVENTS, 2_000))
        await Contest(stage, backlog).by_feedmux("batches", 1, comment=_COMMENT)
        live = Live(stage, backlog.padding, rate, seconds, backlog.last_id + 1)
        for number in range(settings.runs):
            stopped.append(await _figures(live, followers, stop_one=True))
            none.append(await _figures(live, followers, stop_one=False))
            shown = [f"p99 {each[-1]['p99_ms']:.2f} ms" for each in (stopped, none)]
            progress(f"run {number + 1}: one stopped {shown[0]}, none stopped {shown[1]}")
    figures, alternative = medians(stopped), medians(none)
    ratio = median_ratio([each["p99_ms"] for each in stopped], [each["p99_ms"] for each in none])
    return Result(
        f"slow: {followers} subscribers at {rate:,} events/s for {seconds} s",
        f"1 stopped, the other {followers - 1}",
        f"none stopped, the same {followers - 1}",
        figures,
        alternative,
        ratio,
        "p99 of the others with one stopped ÷ with none, median of the runs' ratios",
        [
            Target("ratio", "at_most", 1.2, ratio),
            Target("server_growth_mib", "at_most", 16.0, figures["server_growth_mib"]),
        ],
        ["the server may grow by the stopped subscriber's credit (8 MiB in the default window), once"],
    )


async def _figures(live: Live, followers: int, *, stop_one: bool) -> Figures:
    names = await live.subscribe(followers, _COMMENT)
    jobs = [live.by_feedmux(name) for name in names]
    async with Crew([(write, live.writing()), *jobs]) as crew:
        if stop_one:
            crew.freeze(followers)
        async with watched(live.stage.server) as memory:
            crew.go()
            written, *followed = await crew.results(range(followers))
    return latencies(written, followed) | {
        "server_mib": memory.first_bytes / MIB,
        "server_growth_mib": memory.growth_bytes / MIB,
    }
