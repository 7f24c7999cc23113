"""`spark`: a backlog through PySpark into Parquet and into a hash of all columns, beside MongoDB's own connector."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import WriteConcern

from bench.backlog import Backlog, load, operation_time, order
from bench.crew import Crew, Job, WorkerFailed
from bench.readers import CheckFailed
from bench.report import Result, Target, median_ratio, medians, progress
from bench.settings import COLLECTION, DATABASE, Settings
from bench.spark_jobs import (
    KINDS,
    WARM_COLLECTION,
    WARM_EVENTS,
    Kind,
    Task,
    Timed,
    by_connector,
    by_feedmux,
    by_nothing,
    by_raw_cursor,
)
from bench.stage import Stage

EVENTS = 1_000_000
CONNECTOR = "org.mongodb.spark:mongo-spark-connector_2.13"
CONNECTOR_VERSIONS = ("11.0.1", "10.5.0")
"""Versions, newest first: not every mirror of Maven Central has the newest."""
ENVELOPE_HASH: Kind = ("envelope", "hash")
_READY_TIMEOUT_S = 600.0

Rates = dict[Kind, float]


async def run(settings: Settings) -> Result:
    count = settings.backlog(EVENTS, 200_000, 2_000)
    kinds = (ENVELOPE_HASH,) if settings.tiny else KINDS
    ours: list[Rates] = []
    ceiling: list[Rates] = []
    cursor: list[float] = []
    theirs: list[Rates] = []
    notes = ["MongoDB's connector is not measured at this size"] if settings.tiny else []
    async with Stage() as stage:
        with stage.mongo_client() as client:
            backlog = load(client, count)
            warm_start = _warm(client, backlog)
            sample = _sample(client, backlog, min(count, 2_000))
        task = Task(kinds, backlog.start, warm_start, count, stage.endpoint, stage.mongo.uri, sample=sample)
        connector = None if settings.tiny else await _connector(task, notes)
        for number in range(settings.runs):
            ours.append(await _measured(by_feedmux, task))
            if connector is not None:
                theirs.append(await _measured(by_connector, connector))
            cursor.append((await _measured(by_raw_cursor, task))[ENVELOPE_HASH])
            if not settings.tiny:
                ceiling.append(await _measured(by_nothing, task))
            progress(f"run {number + 1}: feedmux {_shown(ours[-1])}; raw cursor {cursor[-1]:,.0f} rows/s")
            for name, runs in (("connector", theirs), ("without a source", ceiling)):
                if runs:
                    progress(f"run {number + 1}: {name} {_shown(runs[-1])} rows/s")
    return _result(backlog, kinds, ours, theirs, cursor, ceiling, notes)


def _warm(client: Any, backlog: Backlog) -> Timestamp:
    """Write a few events for the warm-up into another collection, and return where they begin."""
    start = operation_time(client)
    warm = client[DATABASE].get_collection(WARM_COLLECTION, write_concern=WriteConcern("majority"))
    warm.insert_many([order(number, backlog.padding) for number in range(WARM_EVENTS)])
    return start


def _sample(client: Any, backlog: Backlog, count: int) -> bytes:
    """Return the first events of the backlog."""
    raw: Any = client[DATABASE].get_collection(COLLECTION, CodecOptions(document_class=RawBSONDocument))
    with raw.watch(start_at_operation_time=backlog.start) as stream:
        return b"".join(bytes(next(stream).raw) for _ in range(count))


async def _connector(task: Task, notes: list[str]) -> Task | None:
    """Return the newest available version of MongoDB's connector that works, tried on the warm-up alone."""
    for version in CONNECTOR_VERSIONS:
        tried = replace(task, packages=f"{CONNECTOR}:{version}")
        try:
            async with Crew([(by_connector, tried)], _READY_TIMEOUT_S):
                notes.append(f"{CONNECTOR}:{version}")
                return tried
        except WorkerFailed as error:
            progress(f"MongoDB's connector {version} does not run: {str(error).strip().splitlines()[-1]}")
    notes.append("MongoDB's connector could not be had or does not run here; the alternative is the raw cursor alone")
    return None


async def _measured(job: Job, task: Task) -> Rates:
    async with Crew([(job, task)], _READY_TIMEOUT_S) as crew:
        crew.go()
        (found,) = await crew.results()
    timed: Sequence[Timed] = found
    for each in timed:
        if each.count != task.count:
            raise CheckFailed(f"{each.count} of {task.count} rows came ({job.__name__}, {' to '.join(each.kind)})")
    return {each.kind: each.count / each.elapsed_s for each in timed}


def _result(
    backlog: Backlog,
    kinds: Sequence[Kind],
    ours: Sequence[Rates],
    theirs: Sequence[Rates],
    cursor: Sequence[float],
    ceiling: Sequence[Rates],
    notes: Sequence[str],
) -> Result:
    figures = _figures(kinds, ours)
    if ceiling:
        figures |= {f"{name}_without_a_source": rate for name, rate in _figures(kinds, ceiling).items()}
    alternative = _figures(kinds, theirs) if theirs else {}
    alternative |= medians([{"raw_cursor_events_per_s": rate} for rate in cursor])
    of_cursor = median_ratio([rates[ENVELOPE_HASH] for rates in ours], cursor)
    figures["envelope_to_hash_of_raw_cursor"] = of_cursor
    targets = [Target("envelope_to_hash_of_raw_cursor", "at_least", 0.6, of_cursor)]
    ratios = {kind: median_ratio([o[kind] for o in ours], [t[kind] for t in theirs]) for kind in kinds if theirs}
    targets += [Target(f"{_name(kind)}_ratio", "at_least", 2.0, ratio) for kind, ratio in ratios.items()]
    return Result(
        "spark",
        f"spark: a backlog of {backlog.count:,} events of {backlog.event_bytes:.0f} bytes through PySpark, local[2]",
        "feedmux",
        "MongoDB's connector" if theirs else "without Spark",
        figures,
        alternative,
        min(ratios.values()) if ratios else of_cursor,
        "rows/s of feedmux ÷ rows/s of MongoDB's connector; the least of the kinds, each the median of the runs"
        if ratios
        else "rows/s of feedmux (envelope to hash) ÷ events/s of the raw cursor, median of the runs",
        targets,
        notes,
    )


def _figures(kinds: Sequence[Kind], runs: Sequence[Rates]) -> dict[str, float]:
    return medians([{f"{_name(kind)}_rows_per_s": rates[kind] for kind in kinds} for rates in runs])


def _name(kind: Kind) -> str:
    return "_to_".join(kind)


def _shown(rates: Rates) -> str:
    return ", ".join(f"{_name(kind)} {rate:,.0f}" for kind, rate in rates.items()).replace("_", " ")
