"""`snapshot`: a copy of existing documents, beside a bare `find` of the same documents in the same order."""

import feedmux
from bench.copies import Copied, Copying, Documents, copy_by_feedmux, find_by_pymongo
from bench.crew import Crew, Job
from bench.readers import CheckFailed
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import DATABASE, Settings
from bench.stage import Cpu, Stage

SIZES = (("500_b", 500, 200_000), ("20_kb", 20_000, 10_000), ("250_kb", 250_000, 800))
"""By the name in the figures: the bytes of a document, and how many there are."""


async def run(settings: Settings) -> Result:
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    collections = {
        name: Documents(f"documents_{name}", settings.size(count, count // 4, max(20, count // 100)), size)
        for name, size, count in SIZES
    }
    async with Stage() as stage:
        with stage.mongo_client() as client:
            for documents in collections.values():
                documents.load(client)
        for number in range(settings.runs):
            ours.append({})
            theirs.append({})
            for name, documents in collections.items():
                ours[-1] |= await by_feedmux(stage, documents, name, f"copy-{name}-{number}")
                job = find_by_pymongo, Copying(stage.mongo.uri, documents)
                theirs[-1] |= _figures(documents, name, *await _measured(stage, job))
                shown = [f"{each[-1][f'documents_per_s_{name}']:,.0f}" for each in (ours, theirs)]
                progress(f"run {number + 1}, {name}: a copy {shown[0]}, find {shown[1]} documents/s")
    figures, alternative = medians(ours), medians(theirs)
    ratios = {
        name: median_ratio([each[f"documents_per_s_{name}"] for each in ours], [
            each[f"documents_per_s_{name}"] for each in theirs
        ])
        for name in collections
    }  # fmt: skip
    ratio, cpu = min(ratios.values()), "server_cpu_us_per_document_500_b"
    return Result(
        "snapshot: a copy of "
        + ", ".join(f"{each.count:,} documents of {each.size_bytes:,} bytes" for each in collections.values()),
        "feedmux, durable, raw, acked",
        "find_raw_batches by _id",
        figures | {f"ratio_{name}": each for name, each in ratios.items()},
        alternative,
        ratio,
        "documents/s of a copy ÷ documents/s of the find, median of the runs' ratios; the least of the sizes",
        [Target("ratio", "at_least", 0.8, ratio), Target(cpu, "at_most", 3.5, figures[cpu])],
        ["the bytes of a copy are those of the events, which are about 220 larger than the documents"],
    )


async def by_feedmux(stage: Stage, documents: Documents, name: str, subscription: str) -> Figures:
    feed = feedmux.Feed(DATABASE, documents.collection)
    async with feedmux.AsyncClient(stage.endpoint) as client:
        await client.create_subscription(subscription, feed, start="snapshot")
    copied, used = await _measured(stage, (copy_by_feedmux, Copying(stage.endpoint, documents, subscription)))
    if copied.count != documents.count:
        raise CheckFailed(f"copied {copied.count} documents, not {documents.count}")
    server = {
        f"server_cpu_us_per_document_{name}": used.server * 1e6 / documents.count,
        f"begin_ms_{name}": copied.begun_s * 1e3,
    }
    return _figures(documents, name, copied, used) | server


async def _measured(stage: Stage, job: tuple[Job, Copying]) -> tuple[Copied, Cpu]:
    async with Crew([job]) as crew:
        before = stage.cpu()
        crew.go()
        [copied] = await crew.results()
        return copied, stage.cpu() - before


def _figures(documents: Documents, name: str, copied: Copied, used: Cpu) -> dict[str, float]:
    if copied.size_bytes < documents.count * documents.size_bytes:
        raise CheckFailed(f"read {copied.size_bytes:,} bytes of {documents.count * documents.size_bytes:,}")
    per_document_us = 1e6 / documents.count
    return {
        f"documents_per_s_{name}": documents.count / copied.elapsed_s,
        f"mb_per_s_{name}": copied.size_bytes / 1e6 / copied.elapsed_s,
        f"client_cpu_us_per_document_{name}": copied.cpu_s * per_document_us,
        f"mongod_cpu_us_per_document_{name}": used.mongod * per_document_us,
    }
