"""`idle`: what 2,000 subscriptions without events cost the server, over heartbeats.

The clients use the generated stubs, as in any language: a hundred sessions on each of twenty channels.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.protobuf import duration_pb2
from pymongo import MongoClient

from bench.crew import Crew, Gate
from bench.measure import MIB, watched
from bench.report import Result, Target, medians, progress
from bench.settings import COLLECTION, DATABASE, NAMESPACE, Settings
from bench.stage import Stage
from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import change_feed_pb2_grpc, feed_pb2, subscriptions_pb2, subscriptions_pb2_grpc

SUBSCRIPTIONS, PER_CHANNEL, SECONDS, HEARTBEAT_S = 2_000, 100, 60, 10
_AT_ONCE = 50
_CREDIT = wire.Credit(events=1_000, bytes=MIB)


@dataclass(frozen=True, slots=True)
class Idling:
    endpoint: str
    names: Sequence[str]
    seconds: float
    heartbeat_s: int


def idle(gate: Gate, task: Idling) -> list[int]:
    """Create the subscriptions and open the first; after the start, open all others.

    Return each session's heartbeats.
    """
    return asyncio.run(_idle(gate, task))


async def _idle(gate: Gate, task: Idling) -> list[int]:
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [
        grpc.aio.insecure_channel(task.endpoint, options=options) for _ in range(-(-len(task.names) // PER_CHANNEL))
    ]
    control: Any = subscriptions_pb2_grpc.SubscriptionsStub(channels[0])
    feed = feed_pb2.Feed(source="main", database=DATABASE, collection=COLLECTION)
    heartbeat = duration_pb2.Duration(seconds=task.heartbeat_s)
    some_at_once = asyncio.Semaphore(_AT_ONCE)

    async def create(name: str) -> None:
        async with some_at_once:
            await control.CreateSubscription(
                subscriptions_pb2.CreateSubscriptionRequest(
                    subscription=subscriptions_pb2.Subscription(name=name, feed=feed)
                )
            )

    async def open_(name: str, channel: grpc.aio.Channel) -> Any:
        stub: Any = change_feed_pb2_grpc.ChangeFeedStub(channel)
        async with some_at_once:
            call = stub.Subscribe()
            request = wire.Open(subscription=name, credit=_CREDIT, heartbeat_interval=heartbeat)
            await call.write(wire.SubscribeRequest(open=request))
            first = await call.read()
        if first.WhichOneof("message") != "opened":
            raise RuntimeError(f"not opened but {first}")
        return call

    await asyncio.gather(*(create(name) for name in task.names))
    calls = [await open_(task.names[0], channels[0])]
    await gate.wait_async()
    calls += await asyncio.gather(
        *(open_(name, channels[number // PER_CHANNEL]) for number, name in enumerate(task.names) if number)
    )
    ends_s = time.monotonic() + task.seconds

    async def listen(call: Any) -> int:
        heartbeats = 0
        while time.monotonic() < ends_s:
            message = await call.read()
            if message is grpc.aio.EOF:
                raise RuntimeError("a session ended")
            heartbeats += message.WhichOneof("message") == "progress"
        return heartbeats

    heard = await asyncio.gather(*(listen(call) for call in calls))
    gate.ready()  # still connected: the cursors are counted now
    await asyncio.to_thread(gate.stopped.wait)
    await asyncio.gather(*(channel.close() for channel in channels))
    return heard


async def run(settings: Settings) -> Result:
    count = settings.size(SUBSCRIPTIONS, 200, 20)
    seconds = settings.size(SECONDS, 10, 2)
    heartbeat_s = settings.size(HEARTBEAT_S, 2, 1)
    progress(f"{count:,} subscriptions for {seconds} s of heartbeats, {settings.runs} times")
    runs: list[dict[str, float]] = []
    for number in range(settings.runs):
        runs.append(await _once(count, seconds, heartbeat_s))
        progress(f"run {number + 1}: {runs[-1]['kib_per_subscription']:.1f} KiB each")
    figures = medians(runs)
    each_kb = figures["kib_per_subscription"] * 1.024
    return Result(
        f"idle: {count:,} idle durable subscriptions of one feed over {seconds} s of heartbeats",
        "feedmux",
        "direct watch(), by count",
        figures,
        {"mongod_cursors": count},
        each_kb,
        "KB of server memory for each subscription (most resident memory, less that with one subscription)",
        [
            Target("kb_per_subscription", "at_most", 60.0, each_kb),
            Target("mongod_cursors", "at_most", 1, max(each["mongod_cursors"] for each in runs)),
        ],
    )


async def _once(count: int, seconds: float, heartbeat_s: int) -> dict[str, float]:
    async with Stage() as stage:
        with stage.mongo_client() as client:
            client[DATABASE].create_collection(COLLECTION)
            names = [f"idle-{number}" for number in range(count)]
            async with Crew([(idle, Idling(stage.endpoint, names, seconds, heartbeat_s))]) as crew:
                before = stage.cpu()
                async with watched(stage.server) as memory:
                    crew.go()
                    await crew.ready()
                    used = stage.cpu() - before
                    cursors = _cursors(client)
                crew.stop()
                (heard,) = await crew.results()
    return {
        "kib_per_subscription": memory.growth_bytes / 1024 / (count - 1),
        "server_mib_with_one": memory.first_bytes / MIB,
        "server_mib_with_all": memory.most_bytes / MIB,
        "mongod_cursors": cursors,
        "heartbeats_least": min(heard),
        "server_cpu_s": used.server,
        "mongod_cpu_s": used.mongod,
    }


def _cursors(client: MongoClient[dict[str, Any]]) -> int:
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"allUsers": True, "idleCursors": True}},
        {"$match": {"ns": NAMESPACE, "cursor": {"$exists": True}}},
    ]
    return len({each["cursor"]["cursorId"] for each in client.admin.aggregate(stages)})
