"""`wide`: a thousand collections with a subscriber each, beside one cluster stream and beside a watch() for each.

What MongoDB's change streams cost is what mongod uses beyond the same writes without a reader. A thousand direct
watch() are more than the machine can run, so a few are measured and the rest is extrapolated.
"""

import asyncio
import gc
import re
import selectors
import socket
import struct
import threading
import time
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import bson
import grpc.aio
import uvloop
from bson.objectid import ObjectId
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
_WARM_UP_S = 2.0
_SETTLE_S = 90.0
_AT_ONCE = 50
_SENT_NS = re.compile(rb"\x12sent_ns\0(.{8})", re.DOTALL)
"""An insert's event has it once, in fullDocument."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Writes of one process, one document each, over collections in turn."""

    uri: str
    collections: int
    rate: float
    seconds: float
    committed: bool = False
    """Acknowledged when a majority has them, as by default. Events are seen then; with `w: 1` they are seen when the
    journal's timer next writes, up to 100 ms later, but only so do writes cost the same with readers and without."""

    @property
    def connections(self) -> int:
        return 16 if self.committed else 4


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


def write(gate: Gate, task: Spread) -> tuple[float, Sequence[int]]:
    """Write at the rate over several connections; return the seconds it took, and the nanoseconds of each insert.

    The commands are prepared except for `_id` and time: with pymongo, 2,000 inserts a second take two fifths of a core.
    """
    with MongoClient[dict[str, Any]](task.uri) as client:
        address = client.address
    assert address is not None
    commands = [_Insert(f"c{number}", task) for number in range(task.collections)]
    count = int(task.rate * task.seconds)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        idle = [stack.enter_context(socket.create_connection(address)) for _ in range(task.connections)]
        by_number = {each.fileno(): each for each in idle}
        for each in idle:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(each, selectors.EVENT_READ)
        inserts_ns = array("q")
        sent_ns: dict[int, int] = {}
        began_s = gate.wait()
        sent = answered = 0
        while answered < count:
            due_s = began_s + sent / task.rate
            sends = sent < count and bool(idle)
            for ready, _ in selector.select(max(0.0, due_s - time.monotonic()) if sends else None):
                connection = by_number[ready.fd]
                _Insert.check_answer(connection)
                inserts_ns.append(time.monotonic_ns() - sent_ns[ready.fd])
                idle.append(connection)
                answered += 1
            if sends and time.monotonic() >= due_s:
                connection = idle.pop()
                sent_ns[connection.fileno()] = commands[sent % task.collections].send(connection)
                sent += 1
        return time.monotonic() - began_s, inserts_ns


class _Insert:
    """`insert` of one document into one collection as an OP_MSG, to be sent again and again."""

    _OP_MSG = 2013
    _HEADER = struct.Struct("<iiiiIB")

    def __init__(self, collection: str, task: Spread) -> None:
        document = {"_id": ObjectId(bytes(12)), "sent_ns": bson.Int64(0), "text": "x" * 200}
        command: dict[str, Any] = {"insert": collection, "$db": _DATABASE, "documents": [document]}
        body = bson.encode(command if task.committed else command | {"writeConcern": {"w": 1}})
        self._message = self._HEADER.pack(self._HEADER.size + len(body), 1, 0, self._OP_MSG, 0, 0) + body
        self._id = self._message.index(b"\x07_id\0") + 5
        self._sent_ns = self._message.index(b"\x12sent_ns\0") + 9

    def send(self, connection: socket.socket) -> int:
        """Send the insert, and return the time stored in the document."""
        message, now_ns = bytearray(self._message), time.monotonic_ns()
        message[self._id : self._id + 12] = ObjectId().binary
        message[self._sent_ns : self._sent_ns + 8] = now_ns.to_bytes(8, "little")
        connection.sendall(message)
        return now_ns

    @classmethod
    def check_answer(cls, connection: socket.socket) -> None:
        """Raise RuntimeError if the insert was rejected."""
        answer = bytearray()
        while len(answer) < 4 or len(answer) < int.from_bytes(answer[:4], "little"):
            received = connection.recv(4096)
            if not received:
                raise RuntimeError("mongod closed the connection")
            answer += received
        reply = bson.decode(answer[cls._HEADER.size :])
        if reply["ok"] != 1 or "writeErrors" in reply or "writeConcernError" in reply:
            raise RuntimeError(f"an insert failed: {reply}")


def watch(gate: Gate, task: Watching) -> list[int]:
    """Open all, and return each event's latency from before its insert, without those of the first seconds."""
    return uvloop.run(_watch(gate, task))


async def _watch(gate: Gate, task: Watching) -> list[int]:
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [
        grpc.aio.insecure_channel(task.endpoint, options=options)
        for _ in range(-(-len(task.collections) // _PER_CHANNEL))
    ]
    times = array("q")  # When it came, and how long it took, in turn.

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
            for found in _SENT_NS.finditer(message.batch.bson):
                times.extend((now_ns, now_ns - int.from_bytes(found[1], "little")))

    calls = await asyncio.gather(*(open_(*each) for each in enumerate(task.collections)))
    followers = [asyncio.create_task(follow(each)) for each in calls]
    # Exclude the readers' present objects from garbage collection, to avoid its pauses.
    gc.collect()
    gc.freeze()
    began_s = await gate.wait_async()
    await asyncio.to_thread(gate.stopped.wait)
    for each in followers:
        if each.done():
            each.result()
        each.cancel()
    return [taken for at_ns, taken in zip(times[::2], times[1::2], strict=True) if at_ns / 1e9 - began_s > _WARM_UP_S]


def direct(gate: Gate, task: Direct) -> int:
    """Do the same with pymongo, with a thread for each. Return how many events came."""
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

    async def run(
        self, readers: Sequence[tuple[Any, Any]], settled: Any = None, *, committed: bool = False
    ) -> tuple[float, float, Sequence[int], list[Any]]:
        """CPU seconds of mongod and of the server for each second of writing, how long each insert took, and what the
        readers returned."""
        async with Crew(readers) as crew, Crew([(write, replace(self.spread, committed=committed))]) as writer:
            if settled is not None:
                await settled()
            crew.go()
            before = self.stage.cpu()
            writer.go()
            ((elapsed_s, inserts_ns),) = await writer.results()
            used = self.stage.cpu() - before
            crew.stop()
            found = await crew.results()
        return used.mongod / elapsed_s, used.server / elapsed_s, inserts_ns, found

    async def feedmux(self, processes: int = 2) -> Figures:
        count = self.spread.collections
        jobs = [(watch, Watching(self.stage.endpoint, range(first, count, processes))) for first in range(processes)]
        cursors = 0

        async def settled() -> None:
            """Wait until the planner has moved the feeds."""
            nonlocal cursors
            end_s = time.monotonic() + _SETTLE_S
            while time.monotonic() < end_s:
                totals = (await self.stage.streams()).totals
                cursors = totals.cursors
                if cursors <= 3:
                    return
                await asyncio.sleep(1)

        mongod, server, _, _ = await self.run(jobs, settled)
        _, _, inserts_ns, found = await self.run(jobs, settled, committed=True)
        times = [each for times in found for each in times]
        return {
            "mongod_cpu_per_s": mongod,
            "server_cpu_per_s": server,
            "p50_ms": percentile(times, 50) / 1e6,
            "p99_ms": percentile(times, 99) / 1e6,
            "insert_p99_ms": percentile(inserts_ns, 99) / 1e6,
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
            writes, *_ = await contest.run([])
            one, *_ = await contest.run([(direct, Direct(stage.mongo.uri, 0))])
            figures = await contest.feedmux()
            ours.append({"change_streams_cpu_per_s": figures["mongod_cpu_per_s"] - writes, **figures})
            measured = {0: one}
            for each in points:
                measured[each], *_ = await contest.run([(direct, Direct(stage.mongo.uri, each))])
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
                f" p99 {figures['p99_ms']:.1f} ms (of the inserts themselves"
                f" {figures['insert_p99_ms']:.1f}), {figures['mongod_cursors']:.0f} cursors"
            )
    figures, alternative = medians(ours), medians(theirs)
    ratio = alternative["all_watch_extrapolated"] / max(figures["change_streams_cpu_per_s"], 1e-3)
    return Result(
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
            "change streams' CPU: mongod's, less what it uses for the writes alone, for each second; with w: 1",
            "latency: with the default write concern, which is when change streams show an event at once",
            f"points measured: {', '.join(str(each) for each in points)} watch()",
        ],
    )
