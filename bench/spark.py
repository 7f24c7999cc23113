"""`spark`: a backlog through PySpark into Parquet and into a hash of all columns, beside MongoDB's own connector."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import median
from typing import Any

from bson.timestamp import Timestamp
from pymongo import WriteConcern

from bench.backlog import Backlog, load, operation_time, order
from bench.crew import Crew, WorkerFailed
from bench.readers import CheckFailed
from bench.report import Result, Target, median_ratio, progress
from bench.settings import DATABASE, Settings
from bench.spark_jobs import (
    ENVELOPE_HASH,
    KINDS,
    SAME_HASH,
    WARM_COLLECTION,
    WARM_EVENTS,
    Kind,
    Measured,
    Source,
    Task,
    drive,
)
from bench.stage import Stage

EVENTS = 250_000
ROUNDS_LEAST = 3
"""The first one is dropped: in it, Java compiles the code."""
CONNECTOR = "org.mongodb.spark:mongo-spark-connector_2.13"
CONNECTOR_VERSIONS = ("11.0.1", "10.5.0")
"""Versions, newest first: not every mirror of Maven Central has the newest."""
EQUAL: Sequence[Kind] = (SAME_HASH, ("json", "hash"))
"""The kinds with equal columns on both sides."""
_READY_TIMEOUT_S = 600.0

Runs = Mapping[tuple[Source, Kind], Sequence[Measured]]
"""The measured queries without those of the first round."""


async def run(settings: Settings) -> Result:
    count = settings.backlog(EVENTS, 100_000, 2_000)
    async with Stage() as stage:
        with stage.mongo_client() as client:
            backlog = load(stage.mongo_client(), count)
            end = operation_time(client)
            warm_start = _warm(client, backlog)
        task = Task(
            (SAME_HASH, ENVELOPE_HASH) if settings.tiny else KINDS,
            2 if settings.tiny else max(ROUNDS_LEAST, settings.runs),
            backlog.start,
            end,
            warm_start,
            count,
            stage.endpoint,
            stage.mongo.uri,
            {"mongod": stage.mongo.nodes[0].process.pid, "server": stage.server.pid},
        )
        measured, note = await _measured(task, [] if settings.tiny else CONNECTOR_VERSIONS)
    _check(measured, count)
    return _result(backlog, measured, note)


def _warm(client: Any, backlog: Backlog) -> Timestamp:
    """Write a few events for the warm-up into another collection, and return where they begin."""
    start = operation_time(client)
    warm = client[DATABASE].get_collection(WARM_COLLECTION, write_concern=WriteConcern("majority"))
    warm.insert_many([order(number, backlog.padding) for number in range(WARM_EVENTS)])
    return start


async def _measured(task: Task, versions: Sequence[str]) -> tuple[list[Measured], str]:
    """Return what the driver measures, with the newest version of MongoDB's connector that it can fetch and that works;
    and a note that says which."""
    async with AsyncExitStack() as stack:
        for packages in (*(f"{CONNECTOR}:{version}" for version in versions), ""):
            job = drive, replace(task, packages=packages)
            try:
                crew = await stack.enter_async_context(Crew([job], _READY_TIMEOUT_S))
            except WorkerFailed as error:
                if not packages:
                    raise
                progress(f"{packages} does not run: {str(error).strip().splitlines()[-1]}")
            else:
                crew.go()
                (found,) = await crew.results()
                return found, packages or "MongoDB's connector is not measured: the alternative is the raw cursor alone"
    raise AssertionError("unreachable")


def _check(measured: Sequence[Measured], count: int) -> None:
    for each in measured:
        if each.count != count:
            raise CheckFailed(f"{each.count} of {count} rows came ({each.source}, {_name(each.kind)})")
    if len({each.hash for each in measured if each.kind == SAME_HASH}) > 1:
        raise CheckFailed("the sources gave other values for equal columns")


def _result(backlog: Backlog, measured: Sequence[Measured], note: str) -> Result:
    runs: dict[tuple[Source, Kind], list[Measured]] = {}
    for each in measured:
        if each.round > 0:
            runs.setdefault((each.source, each.kind), []).append(each)
    figures, alternative = _figures(runs, "feedmux"), _figures(runs, "connector")
    alternative |= {f"even_{name}": value for name, value in _figures(runs, "connector_even").items()}
    cursor = _rates(runs["raw_cursor", ENVELOPE_HASH])
    alternative["raw_cursor_events_per_s"] = median(cursor)
    of_cursor = median_ratio(_rates(runs["feedmux", ENVELOPE_HASH]), cursor)
    figures["envelope_to_hash_of_raw_cursor"] = of_cursor
    targets = [Target("envelope_to_hash_of_raw_cursor", "at_least", 0.6, of_cursor)]
    compared = [kind for kind in EQUAL if ("connector_even", kind) in runs]
    ratios = {kind: _ratio(runs, kind) for kind in compared}
    targets += [Target(f"{_name(kind)}_ratio", "at_least", 1.0, ratio) for kind, ratio in ratios.items()]
    return Result(
        f"spark: a backlog of {backlog.count:,} events of {backlog.event_bytes:.0f} bytes through PySpark, local[2]",
        "feedmux",
        "MongoDB's connector" if compared else "without Spark",
        figures,
        alternative,
        min(ratios.values()) if ratios else of_cursor,
        "rows/s of feedmux ÷ rows/s of MongoDB's connector, cut evenly or not, whichever is faster; the least of the"
        " kinds with equal columns, each the median of the rounds"
        if ratios
        else "rows/s of feedmux (envelope to hash) ÷ events/s of the raw cursor, median of the rounds",
        targets,
        [note],
    )


def _figures(runs: Runs, source: Source) -> dict[str, float]:
    """Return the medians over the rounds: rows/s, documents that MongoDB returned, and µs of CPU, of each row."""
    found: dict[str, float] = {}
    for (whose, kind), queries in runs.items():
        if whose == source:
            name = _name(kind)
            found[f"{name}_rows_per_s"] = median(_rates(queries))
            found[f"{name}_documents_per_row"] = median(each.returned / each.count for each in queries)
            found[f"{name}_cpu_us_per_row"] = median(sum(each.cpu_s.values()) / each.count * 1e6 for each in queries)
            for part in sorted({part for each in queries for part in each.cpu_s}):
                used_us = median(each.cpu_s.get(part, 0.0) / each.count * 1e6 for each in queries)
                found[f"{name}_cpu_us_{part}"] = used_us
    return found


def _ratio(runs: Runs, kind: Kind) -> float:
    ours = _rates(runs["feedmux", kind])
    theirs = zip(_rates(runs["connector", kind]), _rates(runs["connector_even", kind]), strict=True)
    return median_ratio(ours, [max(both) for both in theirs])


def _rates(queries: Sequence[Measured]) -> list[float]:
    return [each.count / each.elapsed_s for each in queries]


def _name(kind: Kind) -> str:
    return "_to_".join(kind)
