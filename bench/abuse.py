"""`abuse`: a quiet tenant's latency beside one that does its worst within its default quotas, beside the same alone."""

import asyncio
import os
import re
import secrets
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.abuser import VECTORS, Abuse, Abused, abuse
from bench.backlog import Backlog, load
from bench.crew import Crew
from bench.latency import Live, latencies
from bench.live import write
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage, Tenant

BACKLOG = 200_000
RATE = 100
SECONDS = 20
VECTOR_SECONDS = 8
PROCESSES = 3
TOGETHER = "together"


@dataclass(slots=True)
class Measured:
    """The figures of all runs of one side."""

    runs: list[Figures] = field(default_factory=list)

    @property
    def medians(self) -> dict[str, float]:
        return medians(self.runs)

    def p99s(self) -> list[float]:
        return [each["p99_ms"] for each in self.runs]


async def run(settings: Settings) -> Result:
    each = list(VECTORS)[: settings.size(len(VECTORS), len(VECTORS), 1)]
    chosen = [settings.vector] if settings.vector else [TOGETHER, *each]
    if unknown := set(chosen) - {TOGETHER, *VECTORS}:
        raise SystemExit(f"unknown vector {', '.join(unknown)}: the vectors are {TOGETHER}, {', '.join(VECTORS)}")
    sides = {name: Measured() for name in chosen}
    alone = {name: Measured() for name in chosen}
    quiet = Tenant("quiet", secrets.token_hex(32))
    abuser = Tenant("abuser", secrets.token_hex(32))
    async with Stage(tenants=[quiet, abuser]) as stage:
        backlog = load(stage.mongo_client(), settings.backlog(BACKLOG, 50_000, 2_000))
        place = Place(stage, backlog, settings, quiet.key, abuser.key)
        for number in range(settings.runs):
            for name in chosen:
                known = alone[chosen[0]].runs if settings.tiny else []
                alone[name].runs.append(known[0] if known else await place.measure([], name))
                sides[name].runs.append(await place.measure(vectors_of(name), name))
                _report(number, name, sides[name].runs[-1], alone[name].runs[-1])
    return _result(settings, sides, alone)


def vectors_of(name: str) -> Sequence[str]:
    return tuple(VECTORS) if name == TOGETHER else (name,)


@dataclass(slots=True)
class Place:
    """The servers that the tenants share. Each run begins with a new server, so that runs do not affect each other."""

    stage: Stage
    backlog: Backlog
    settings: Settings
    quiet: str
    abuser: str
    _next_id: int = 0

    async def measure(self, vectors: Sequence[str], name: str) -> Figures:
        """Measure the quiet tenant's latency beside these vectors, or alone if there are none."""
        full = SECONDS if name == TOGETHER or self.settings.vector else VECTOR_SECONDS
        seconds = self.settings.size(full, 5, 1)
        await self.stage.restart_server()
        live = Live(
            self.stage, self.backlog.padding, RATE, seconds, max(self._next_id, self.backlog.last_id + 1), self.quiet
        )
        self._next_id = max(self._next_id, self.backlog.last_id + 1) + live.count
        (subscription,) = await live.subscribe(1)
        # A watch() beside the subscription shows what the machine and MongoDB make of the abuse without feedmux.
        jobs = [(write, live.writing(1)), live.by_feedmux(subscription), live.by_pymongo()]
        abuses = [
            Abuse(self.stage.endpoint, self.abuser, self.backlog.start, some, self.settings.size(100, 100, 5))
            for process in range(PROCESSES)
            if (some := vectors[process::PROCESSES])
        ]
        async with Crew([(abuse, each) for each in abuses]) as crew, Crew(jobs) as quiet:
            crew.go()
            cpu, lag, began_s = self.stage.cpu(), await self._lag(), time.monotonic()
            quiet.go()
            written, followed, direct = await quiet.results()
            used, elapsed_s = self.stage.cpu() - cpu, time.monotonic() - began_s
            late = lag_p99_ms(lag, await self._lag())
            memory_mb = self.stage.server.rss_bytes() / 2**20
            crew.stop()
            made: list[Abused] = await crew.results()
        if abuses and not sum(each.calls for each in made):
            raise RuntimeError("the abusive tenant made no call")
        cpu_s = used.server + used.mongod + followed.cpu_s + direct.cpu_s + sum(each.cpu_s for each in made)
        return latencies(written, [followed]) | {
            "watch_p99_ms": latencies(written, [direct])["p99_ms"],
            "loop_lag_p99_ms": late,
            "server_cpu_s": used.server,
            "mongod_cpu_s": used.mongod,
            "server_memory_mb": memory_mb,
            "calls": sum(each.calls for each in made),
            "rejected": sum(sum(each.rejected.values()) for each in made),
            "machine_percent": 100 * cpu_s / elapsed_s / (os.cpu_count() or 1),
        }

    async def _lag(self) -> dict[float, float]:
        """Return the event loop's lag: observations by the upper bound of their bucket."""

        def read() -> str:
            with urllib.request.urlopen(self.stage.metrics_url, timeout=60) as answer:
                return str(answer.read().decode())

        found = re.findall(
            r'^feedmux_event_loop_lag_seconds_bucket\{.*?le="([^"]+)".*?\} ([0-9.e+]+)$',
            await asyncio.to_thread(read),
            re.MULTILINE,
        )
        return {float(bound): float(count) for bound, count in found}


def lag_p99_ms(before: dict[float, float], after: dict[float, float]) -> float:
    """Return the bound of the bucket with the 99th percentile of the observations between two readings."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in sorted(after.items())}
    most = max(counts.values(), default=0.0)
    finite = [bound for bound in counts if bound != float("inf")]
    return next((1e3 * bound for bound in finite if counts[bound] >= 0.99 * most), 1e3 * max(finite, default=0.0))


def limit_ms(alone_ms: float) -> float:
    """Return the limit: 1.2 times the latency alone, or 5 ms more, whichever is higher."""
    return max(alone_ms * 1.2, alone_ms + 5.0)


def _report(number: int, name: str, beside: Figures, alone: Figures) -> None:
    progress(
        f"run {number + 1}, {name}: p99 {beside['p99_ms']:.2f} ms (alone {alone['p99_ms']:.2f}), of watch()"
        f" {beside['watch_p99_ms']:.2f} ({alone['watch_p99_ms']:.2f}), p50"
        f" {beside['p50_ms']:.2f} ({alone['p50_ms']:.2f}), loop p99 ≤ {beside['loop_lag_p99_ms']:g} ms"
        f" ({alone['loop_lag_p99_ms']:g}), server {beside['server_cpu_s']:.1f} s ({alone['server_cpu_s']:.1f}), mongod"
        f" {beside['mongod_cpu_s']:.1f} s ({alone['mongod_cpu_s']:.1f}), {beside['server_memory_mb']:.0f} MB,"
        f" {beside['calls']:.0f} calls, {beside['rejected']:.0f} rejected"
    )


def _result(settings: Settings, sides: dict[str, Measured], alone: dict[str, Measured]) -> Result:
    main, *others = sides
    figures, alternative = sides[main].medians, alone[main].medians
    targets = [Target("p99_ms", "at_most", limit_ms(alternative["p99_ms"]), figures["p99_ms"])]
    for name in others:
        figure = f"{name}_p99_ms"
        figures[figure], alternative[figure] = (side[name].medians["p99_ms"] for side in (sides, alone))
        figures[f"{name}_loop_lag_p99_ms"] = sides[name].medians["loop_lag_p99_ms"]
        targets.append(Target(figure, "at_most", limit_ms(alternative[figure]), figures[figure]))
    return Result(
        f"abuse: a tenant with {RATE} events/s, and what an abusive one does to its latency ({main})",
        "beside the abusive tenant",
        "alone",
        figures,
        alternative,
        median_ratio(sides[main].p99s(), alone[main].p99s()),
        "p99 beside the other ÷ p99 alone, median of the runs' ratios",
        targets,
        [
            "the limits are 1.2 times the p99 alone, or 5 ms more where that is more",
            f"vectors: {', '.join(vectors_of(main))}",
        ],
    )
