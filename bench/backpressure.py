"""`backpressure`: what is read from MongoDB and held while a slow Spark sink takes a backlog, beside a fast one.

The run does not drain the backlog, but measures for a while. With a fast sink, the server reads at MongoDB's full
speed.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from bench.backlog import load
from bench.measure import MIB, documents_returned
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import COLLECTION, DATABASE, Settings
from bench.stage import Stage
from feedmux_embedded import Process
from feedmux_embedded.workdir import WorkDir

EVENTS = 5_000_000
OPLOG_MB = 8192
ROWS_PER_S = 10_000
SECONDS = 60
READY_S = 180.0
_ROOT = Path(__file__).parents[1]


async def run(settings: Settings) -> Result:
    seconds = settings.size(SECONDS, 20, 5)
    rate = settings.size(ROWS_PER_S, ROWS_PER_S, 1_000)
    slow: list[Figures] = []
    fast: list[Figures] = []
    async with Stage(oplog_mb=settings.size(OPLOG_MB, 2048, 512)) as stage:
        with stage.mongo_client() as client:
            backlog = load(stage.mongo_client(), settings.backlog(EVENTS, 800_000, 20_000))
            for number in range(settings.runs):
                slow.append(await _watched(stage, client, seconds, rate))
                fast.append(await _watched(stage, client, seconds, 0))
                shown = [f"{each[-1]['mongodb_events_per_s']:,.0f} events/s" for each in (slow, fast)]
                progress(f"run {number + 1}: MongoDB gives {shown[0]} to the slow sink, {shown[1]} to the fast one")
    figures = medians(slow)
    ahead = median_ratio([each["mongodb_events"] for each in slow], [max(1.0, each["rows"]) for each in slow])
    return Result(
        f"backpressure: a Spark sink of {rate:,} rows/s before a backlog of {backlog.count:,} events, for {seconds} s",
        "slow sink",
        "no limit",
        figures,
        medians(fast),
        ahead,
        "events MongoDB returned ÷ rows the slow sink took, median of the runs' ratios",
        [
            Target("server_growth_mib", "at_most", 256.0, figures["server_growth_mib"]),
            Target("workers_mib", "at_most", 1000.0, figures["workers_mib"]),
        ],
        [
            "read ahead are one micro-batch and the server's own read-ahead, whatever the backlog",
            "the JVM has a heap of 1 GiB, and takes what it is given",
        ],
    )


async def _watched(stage: Stage, client: MongoClient[dict[str, Any]], seconds: float, rows_per_s: int) -> Figures:
    folder = WorkDir("slow-sink")
    job = {
        "folder": str(folder.path),
        "rows_per_s": rows_per_s,
        "options": {
            "endpoint": stage.endpoint,
            "database": DATABASE,
            "collection": COLLECTION,
            "consumerName": f"slow-sink-{time.monotonic_ns()}",
            "comment": folder.path.name,
            "startingOffsets": "earliest",
            "readPartitions": "2",
        },
    }
    path = folder.path / "job.json"
    path.write_text(json.dumps(job))
    command = [sys.executable, "-m", "bench.slow_sink", str(path)]
    query = Process("the query", command, folder.path / "query.log", cwd=_ROOT)
    query.start()
    try:
        began = await _first_rows(query, folder.path)
        returned, rows, at_s = documents_returned(client), began, time.monotonic()
        memory = _Memory(stage.server.rss_bytes() / MIB, int((folder.path / "jvm").read_text()))
        while time.monotonic() < at_s + seconds:
            await asyncio.sleep(0.25)
            query.check_running()
            memory.look(stage.server)
        elapsed_s = time.monotonic() - at_s
        rows, events = _rows(folder.path), documents_returned(client) - returned
        return {
            "rows_per_s": (rows - began) / elapsed_s,
            "mongodb_events_per_s": events / elapsed_s,
            "rows": float(rows),
            "mongodb_events": float(events + began),
            "server_mib": memory.server_mib,
            "server_growth_mib": memory.server_mib - memory.first_mib,
            "workers_mib": memory.workers_mib,
            "jvm_mib": memory.jvm_mib,
        }
    finally:
        await query.kill9()
        folder.remove()


async def _first_rows(query: Process, folder: Path) -> int:
    """Wait for the first micro-batch, and return the number of rows by then."""
    give_up_at = time.monotonic() + READY_S
    while not _rows(folder):
        query.check_running()
        query.check_patience(give_up_at)
        await asyncio.sleep(0.1)
    return _rows(folder)


def _rows(folder: Path) -> int:
    path = folder / "rows"
    return int(path.read_text()) if path.exists() else 0


@dataclass(slots=True)
class _Memory:
    """The most memory that each process has held so far."""

    first_mib: float
    jvm: int
    server_mib: float = 0.0
    workers_mib: float = 0.0
    """All of Spark's Python processes together, of the driver and of the tasks."""
    jvm_mib: float = 0.0

    def look(self, server: Process) -> None:
        self.server_mib = max(self.server_mib, server.rss_bytes() / MIB)
        self.jvm_mib = max(self.jvm_mib, _field_mib(self.jvm, 1))
        self.workers_mib = max(self.workers_mib, sum(map(_unshared_mib, _children(self.jvm))))


def _children(pid: int) -> list[int]:
    """Return all descendants of a process."""
    parents = dict[int, int]()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, look = list[int](), {pid}
    while look:
        look = {child for child, parent in parents.items() if parent in look}
        found += look
    return found


def _unshared_mib(pid: int) -> float:
    """Return the resident memory not backed by files, as workers share Python's libraries."""
    return _field_mib(pid, 1) - _field_mib(pid, 2)


def _field_mib(pid: int, field: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE") / MIB
    except OSError:
        return 0.0
