"""`latency`: from insert to document with 16 subscribers, beside 16 direct watch()."""

from collections.abc import Sequence

import feedmux
from bench.backlog import FIRST_ID, find_padding
from bench.crew import Crew, Job
from bench.live import Followed, Following, Writing, Written, follow_by_feedmux, follow_by_pymongo, write
from bench.measure import percentile
from bench.readers import feed_of
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage

RATE = 1_000
PER_INSERT = 5
"""Documents per command. With one each, the 1,000 waits for the disk would take most of the time of two cores."""
SECONDS = 20
FOLLOWERS = 16


class Live:
    """Runs followers beside a writer, repeatedly on one stage. Every run has its own names and documents."""

    def __init__(
        self, stage: Stage, padding: str, rate: float, seconds: float, first_id: int = FIRST_ID, key: str = ""
    ) -> None:
        """Use the `_id`s from `first_id`, all of which are free. `key` is the tenant's key, if there are tenants."""
        self._key = key
        self.stage = stage
        self.rate = rate
        self.count = int(rate * seconds)
        self._padding = padding
        self._next_id = first_id

    async def subscribe(self, followers: int, comment: str = "") -> list[str]:
        """Create durable subscriptions that begin now."""
        names = [f"follower-{self._next_id}-{number}" for number in range(followers)]
        async with feedmux.AsyncClient(self.stage.endpoint, api_key=self._key or None) as client:
            for name in names:
                await client.create_subscription(name, feed_of(comment), start="latest")
        return names

    def writing(self, per_insert: int = PER_INSERT) -> Writing:
        """Return the writer of the next run."""
        first_id, self._next_id = self._next_id, self._next_id + self.count
        return Writing(self.stage.mongo.uri, first_id, self.count, self.rate, self._padding, per_insert)

    def following(self, address: str, *names: str) -> Following:
        return Following(address, self.count, self.rate, names, self._key)

    def by_feedmux(self, name: str) -> tuple[Job, Following]:
        return follow_by_feedmux, self.following(self.stage.endpoint, name)

    def by_pymongo(self) -> tuple[Job, Following]:
        return follow_by_pymongo, self.following(self.stage.mongo.uri)


async def run(settings: Settings) -> Result:
    seconds = settings.size(SECONDS, 5, 1)
    followers = settings.size(FOLLOWERS, FOLLOWERS, 3)
    rate = settings.size(RATE, RATE, 200)
    ours: list[Figures] = []
    theirs: list[Figures] = []
    async with Stage() as stage:
        with stage.mongo_client() as client:
            live = Live(stage, find_padding(client), rate, seconds)
        for number in range(settings.runs):
            names = await live.subscribe(followers)
            ours.append(await _figures(live, [live.by_feedmux(name) for name in names]))
            theirs.append(await _figures(live, [live.by_pymongo() for _ in range(followers)]))
            shown = [f"p50 {each[-1]['p50_ms']:.2f} ms, p99 {each[-1]['p99_ms']:.2f} ms" for each in (ours, theirs)]
            progress(f"run {number + 1}: feedmux {shown[0]}; watch() {shown[1]}")
    figures, alternative = medians(ours), medians(theirs)
    return Result(
        f"latency: {rate:,} inserts/s for {seconds} s, {followers} readers, from before the insert to the document",
        "feedmux, durable, acked",
        "pymongo watch(), dicts",
        figures,
        alternative,
        median_ratio([each["p50_ms"] for each in ours], [each["p50_ms"] for each in theirs]),
        "p50 of feedmux ÷ p50 of watch(), median of the runs' ratios",
        [
            Target("p50_ms", "at_most", alternative["p50_ms"] + 1.0, figures["p50_ms"]),
            Target("p99_ms", "at_most", alternative["p99_ms"] + 5.0, figures["p99_ms"]),
        ],
        ["the targets are watch()'s p50 + 1 ms and p99 + 5 ms"],
    )


async def _figures(live: Live, followers: list[tuple[Job, Following]]) -> Figures:
    before = live.stage.cpu()
    async with Crew([(write, live.writing()), *followers]) as crew:
        crew.go()
        written, *followed = await crew.results()
    used = live.stage.cpu() - before
    return latencies(written, followed) | {
        "mongod_cpu_s": used.mongod,
        "server_cpu_s": used.server,
    }


def latencies(written: Written, followed: Sequence[Followed]) -> dict[str, float]:
    """Return the observed latencies in milliseconds."""
    times_ns = [time for each in followed for time in each.times_ns]
    return {
        "p50_ms": percentile(times_ns, 50) / 1e6,
        "p99_ms": percentile(times_ns, 99) / 1e6,
        "most_ms": max(times_ns) / 1e6,
        "insert_p99_ms": percentile(written.inserts_ns, 99) / 1e6,
        "events": len(times_ns),
        "written_in_s": written.elapsed_s,
        "client_cpu_s": sum(each.cpu_s for each in followed),
    }
