"""`wide`: a thousand collections with a subscriber each, beside one cluster stream and beside a watch() for each.

What MongoDB's change streams cost is what mongod uses beyond the same writes without a reader. A thousand direct
watch() are more than the machine carries, so a few are measured and the rest is drawn from there.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import bson
import grpc.aio
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from bench.crew import Crew, Gate
from bench.measure import percentile
from bench.report import Figures, Result, Target, medians, progress
from bench.settings import Settings
from bench.stage import Stage
from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import change_feed_pb2_grpc, feed_pb2

COLLECTIONS, RATE, SECONDS = 1_000, 2_000, 20
DIRECT = (5, 20, 60)
_DATABASE = "wide"
_PER_CHANNEL = 100
_WRITERS = 16
"""Each waits for its insert to be committed, with the default write concern. With w: 1 an event would be seen when
mongod's journal timer next writes it down, up to 100 ms later, by every change stream."""
_WARM_UP_S = 2.0
_SETTLE_S = 90.0
_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Spread:
    """Writes of one process, one document each, over collections in turn."""

    uri: str
    collections: int
    rate: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Watching:
    """Subscribers of one process, one for each collection."""

    endpoint: str
    collections: Sequence[int]


@dataclass(frozen=True, slots=True)
class Direct:
    """Direct watch() of one process: on so many collections, or one on the deployment."""

    uri: str
    collections: int


def write(gate: Gate, task: Spread) -> float:
    """Keeps the rate from several threads; returns how long it took."""
    client: MongoClient[dict[str, Any]] = MongoClient(task.uri)
    database = client[_DATABASE]
    count = int(task.rate * task.seconds)

    def insert(first: int) -> None:
        for number in range(first, count, _WRITERS):
            time.sleep(max(0.0, began_s + number / task.rate - time.monotonic()))
            database[f"c{number % task.collections}"].insert_one({"sent_ns": time.monotonic_ns(), "text": "x" * 200})

    began_s = gate.wait()
    threads = [threading.Thread(target=insert, args=(first,)) for first in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    return time.monotonic() - began_s


def watch(gate: Gate, task: Watching) -> list[int]:
    """Opens all, and returns each event's time from before its insert, without the first seconds'."""
    return asyncio.run(_watch(gate, task))


async def _watch(gate: Gate, task: Watching) -> list[int]:
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [
        grpc.aio.insecure_channel(task.endpoint, options=options)
        for _ in range(-(-len(task.collections) // _PER_CHANNEL))
    ]
    times: list[tuple[int, int]] = []

    some_at_once = asyncio.Semaphore(_AT_ONCE)

    async def open_(number: int, collection: int) -> Any:
        stub: Any = change_feed_pb2_grpc.ChangeFeedStub(channels[number // _PER_CHANNEL])
        feed = feed_pb2.Feed(source="main", database=_DATABASE, collection=f"c{collection}")
        async with some_at_once:
            call = stub.Watch(wire.WatchRequest(feed=feed))
            first = await call.read()
        if first.WhichOneof("message") != "opened":
            raise RuntimeError(f"not opened but {first}")
        return call

    async def follow(call: Any) -> None:
        while True:
            message = await call.read()
            now_ns = time.monotonic_ns()
            events = bson.decode_all(message.batch.bson) if message.WhichOneof("message") == "batch" else []
            times.extend((now_ns, now_ns - event["fullDocument"]["sent_ns"]) for event in events)

    calls = await asyncio.gather(*(open_(*each) for each in enumerate(task.collections)))
    followers = [asyncio.create_task(follow(each)) for each in calls]
    began_s = await gate.wait_async()
    await asyncio.to_thread(gate.stopped.wait)
    for each in followers:
        if each.done():
            each.result()
        each.cancel()
    return [taken for at_ns, taken in times if at_ns / 1e9 - began_s > _WARM_UP_S]


def direct(gate: Gate, task: Direct) -> int:
    """The same with pymongo, a thread for each. How many events came."""
    client: MongoClient[RawBSONDocument] = MongoClient(task.uri, document_class=RawBSONDocument, maxPoolSize=None)
    counts = [0] * max(1, task.collections)

    def follow(number: int) -> None:
        target = client[_DATABASE][f"c{number}"] if task.collections else client
        with target.watch(max_await_time_ms=200) as stream:
            ready.release()
            while not gate.stopped.is_set():
                counts[number] += stream.try_next() is not None

    ready = threading.Semaphore(0)
    threads = [threading.Thread(target=follow, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    for _ in threads:
        ready.acquire()
    gate.wait()
    gate.stopped.wait()
    for thread in threads:
        thread.join()
    client.close()
    return sum(counts)


class _Contest:
    """Runs readers beside the writer."""

    def __init__(self, stage: Stage, collections: int, rate: float, seconds: float) -> None:
        self.stage = stage
        self.spread = Spread(stage.mongo.uri, collections, rate, seconds)

    async def run(self, readers: Sequence[tuple[Any, Any]], settled: Any = None) -> tuple[float, float, list[Any]]:
        """CPU seconds of mongod and of the server for each second of writing, and what the readers returned."""
        async with Crew(readers) as crew, Crew([(write, self.spread)]) as writer:
            if settled is not None:
                await settled()
            crew.go()
            before = self.stage.cpu()
            writer.go()
            (elapsed_s,) = await writer.results()
            used = self.stage.cpu() - before
            crew.stop()
            found = await crew.results()
        return used.mongod / elapsed_s, used.server / elapsed_s, found

    async def feedmux(self, processes: int = 2) -> Figures:
        count = self.spread.collections
        jobs = [(watch, Watching(self.stage.endpoint, range(first, count, processes))) for first in range(processes)]
        cursors = 0

        async def settled() -> None:
            """Until the planner has moved the feeds."""
            nonlocal cursors
            end_s = time.monotonic() + _SETTLE_S
            while time.monotonic() < end_s:
                totals = (await self.stage.streams()).totals
                cursors = totals.cursors
                if cursors <= 3:
                    return
                await asyncio.sleep(1)

        mongod, server, found = await self.run(jobs, settled)
        times = [each for times in found for each in times]
        return {
            "mongod_cpu_per_s": mongod,
            "server_cpu_per_s": server,
            "p50_ms": percentile(times, 50) / 1e6,
            "p99_ms": percentile(times, 99) / 1e6,
            "events": len(times),
            "mongod_cursors": cursors,
        }


async def run(settings: Settings) -> Result:
    count = settings.size(COLLECTIONS, 200, 12)
    rate = settings.size(RATE, RATE, 100)
    seconds = settings.size(SECONDS, 8, 4)
    points = [each for each in DIRECT if each <= count]
    ours: list[Figures] = []
    theirs: list[Figures] = []
    async with Stage() as stage:
        with stage.mongo_client() as client:
            for number in range(count):
                client[_DATABASE].create_collection(f"c{number}")
        contest = _Contest(stage, count, rate, seconds)
        for number in range(settings.runs):
            writes, _, _ = await contest.run([])
            one, _, _ = await contest.run([(direct, Direct(stage.mongo.uri, 0))])
            figures = await contest.feedmux()
            ours.append({"change_streams_cpu_per_s": figures["mongod_cpu_per_s"] - writes, **figures})
            measured = {0: one}
            for each in points:
                measured[each], _, _ = await contest.run([(direct, Direct(stage.mongo.uri, each))])
            slope = (measured[points[-1]] - writes) / points[-1]
            theirs.append(
                {
                    "writes_cpu_per_s": writes,
                    "one_cluster_stream_cpu_per_s": one - writes,
                    **{f"{each}_watch_cpu_per_s": measured[each] - writes for each in points},
                    "all_watch_extrapolated": slope * count,
                }
            )
            progress(
                f"run {number + 1}: change streams use {ours[-1]['change_streams_cpu_per_s']:.3f} CPU s/s with feedmux,"
                f" {one - writes:.3f} with one cluster stream, {slope * count:.1f} (extrapolated) with {count} watch();"
                f" p99 {figures['p99_ms']:.1f} ms, {figures['mongod_cursors']:.0f} cursors"
            )
    figures, alternative = medians(ours), medians(theirs)
    ratio = alternative["all_watch_extrapolated"] / max(figures["change_streams_cpu_per_s"], 1e-3)
    return Result(
        "wide",
        f"wide: {count:,} collections, a subscriber each, {rate:,} writes/s over all of them",
        "feedmux",
        "watch()",
        figures,
        alternative,
        ratio,
        f"mongod's CPU for {count:,} watch() (extrapolated) ÷ for feedmux",
        [
            Target(
                "change_streams_cpu_per_s",
                "at_most",
                1.5 * alternative["one_cluster_stream_cpu_per_s"],
                figures["change_streams_cpu_per_s"],
            ),
            Target("p99_ms", "at_most", 50.0, figures["p99_ms"]),
            Target("mongod_cursors", "at_most", 3, max(each["mongod_cursors"] for each in ours)),
        ],
        [
            "change streams' CPU: mongod's, less what it uses for the writes alone, for each second",
            f"points measured: {', '.join(str(each) for each in points)} watch()",
        ],
    )
