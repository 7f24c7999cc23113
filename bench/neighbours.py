"""`neighbours`: a quiet tenant's latency beside nine noisy tenants, beside the same alone."""

import os
import secrets
import time

from bench.abuse import limit_ms
from bench.backlog import load
from bench.crew import Crew
from bench.latency import Live, latencies
from bench.live import write
from bench.noise import KINDS, QUOTAS, Neighbour, Noise, make_noise
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage, Tenant

BACKLOG = 200_000
RATE = 100
SECONDS = 20
NOISY = ("firehose", "firehose", "firehose", "json", "json", "laggards", "laggards", "poison", "hammer")
PROCESSES = 3
_SHARE_MAX = 0.7


async def run(settings: Settings) -> Result:
    seconds = settings.size(SECONDS, 8, 2)
    quiet = Tenant("quiet", secrets.token_hex(32))
    noisy = [Tenant(f"noisy-{number}-{kind}", secrets.token_hex(32), QUOTAS) for number, kind in enumerate(NOISY)]
    beside: list[Figures] = []
    alone: list[Figures] = []
    async with Stage(tenants=[quiet, *noisy]) as stage:
        backlog = load(stage.mongo_client(), settings.backlog(BACKLOG, 50_000, 2_000))
        live = Live(stage, backlog.padding, RATE, seconds, backlog.last_id + 1, quiet.key)
        neighbours = [Neighbour(tenant.key, kind) for tenant, kind in zip(noisy, NOISY, strict=True)]
        noises = [Noise(stage.endpoint, backlog.start, neighbours[number::PROCESSES]) for number in range(PROCESSES)]
        for number in range(settings.runs):
            alone.append(await _figures(live, []))
            beside.append(await _figures(live, noises))
            shown = [
                f"p99 {each[-1]['p99_ms']:.2f} ms (of the inserts themselves {each[-1]['insert_p99_ms']:.2f})"
                for each in (beside, alone)
            ]
            progress(
                f"run {number + 1}: beside nine {shown[0]}, alone {shown[1]};"
                f" machine used {beside[-1]['machine_percent']:.0f} %"
            )
    figures, alternative = medians(beside), medians(alone)
    ratio = median_ratio([each["p99_ms"] for each in beside], [each["p99_ms"] for each in alone])
    return Result(
        f"neighbours: a tenant with {RATE} events/s for {seconds} s, and what nine others do to its latency",
        f"beside {len(NOISY)} noisy tenants",
        "alone",
        figures,
        alternative,
        ratio,
        "p99 beside the others ÷ p99 alone, median of the runs' ratios",
        [
            Target("p99_ms", "at_most", limit_ms(alternative["p99_ms"]), figures["p99_ms"]),
            Target("machine_percent", "at_most", _SHARE_MAX * 100, figures["machine_percent"]),
        ],
        [
            "noise: " + ", ".join(f"{NOISY.count(kind)} × {kind}" for kind in KINDS),
            "the limit is 1.2 times the p99 alone, or 5 ms more where that is more",
        ],
    )


async def _figures(live: Live, noises: list[Noise]) -> Figures:
    (name,) = await live.subscribe(1)
    jobs = [(write, live.writing(1)), live.by_feedmux(name)]
    async with Crew([(make_noise, noise) for noise in noises]) as crew, Crew(jobs) as quiet:
        crew.go()
        before, began_s = live.stage.cpu(), time.monotonic()
        quiet.go()
        written, followed = await quiet.results()
        used, elapsed_s = live.stage.cpu() - before, time.monotonic() - began_s
        crew.stop()
        made = await crew.results()
    for each in made:
        if each.errors:
            raise RuntimeError(f"a neighbour failed: {each.errors[0]}")
    cpu_s = used.server + used.mongod + followed.cpu_s + sum(each.cpu_s for each in made)
    return latencies(written, [followed]) | {
        "server_cpu_s": used.server,
        "mongod_cpu_s": used.mongod,
        "noise_events_per_s": sum(each.events for each in made) / elapsed_s,
        "noise_refused": sum(each.refused for each in made),
        "machine_percent": 100 * cpu_s / elapsed_s / (os.cpu_count() or 1),
    }
