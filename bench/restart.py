"""`restart`: the server starts again, and 64 subscribers whose positions are spread over history reconnect at once."""

from typing import Any

from pymongo import MongoClient

import feedmux
from bench.backlog import Backlog, load
from bench.crew import Crew
from bench.measure import documents_returned
from bench.readers import CheckFailed, Share, Task, batches_by_feedmux, feed_of
from bench.report import Result, Target, medians, progress
from bench.settings import Settings
from bench.stage import Stage

EVENTS = 100_000
SUBSCRIBERS = 64
_PROCESSES = 2


async def run(settings: Settings) -> Result:
    count = settings.backlog(EVENTS, 50_000, 4_000)
    subscribers = settings.size(SUBSCRIBERS, SUBSCRIBERS, 8)
    runs: list[dict[str, float]] = []
    async with Stage() as stage:
        with stage.mongo_client() as client:
            backlog = load(stage.mongo_client(), count)
            for number in range(settings.runs):
                runs.append(await _once(stage, client, backlog, subscribers, number))
                progress(
                    f"run {number + 1}: MongoDB returned {runs[-1]['events_from_mongod']:,.0f} events"
                    f" for {runs[-1]['events_delivered']:,.0f} delivered"
                )
    figures = medians(runs)
    ratio = figures["events_from_mongod"] / count
    return Result(
        f"restart: {subscribers} subscribers reconnect, their positions spread over the last {count:,} events",
        "feedmux",
        "direct watch(), by count",
        figures,
        {"events_from_mongod": figures["events_delivered"]},
        ratio,
        f"events that MongoDB returned ÷ {count:,}",
        [Target("ratio", "at_most", 2.0, ratio)],
    )


async def _once(
    stage: Stage, client: MongoClient[dict[str, Any]], backlog: Backlog, subscribers: int, number: int
) -> dict[str, float]:
    feed = feed_of(f"restart {number}")
    read = [index * backlog.count // subscribers for index in range(subscribers)]
    names = [f"reader-{number}-{index}" for index in range(subscribers)]
    await _store_positions(stage, backlog, feed, dict(zip(names, read, strict=True)))
    await stage.restart_server()
    left = [backlog.count - each for each in read]
    tasks = [
        Task(stage.endpoint, backlog.start, backlog.count, names[share::_PROCESSES], counts=left[share::_PROCESSES])
        for share in range(_PROCESSES)
    ]
    async with Crew([(batches_by_feedmux, task) for task in tasks]) as crew:
        returned, used = documents_returned(client), stage.cpu()
        crew.go()
        shares: list[Share] = await crew.results()
        returned, used = documents_returned(client) - returned, stage.cpu() - used
    streams = (await stage.streams()).shared_streams
    reads = [each for share in shares for each in share.reads]
    if sorted(each.count for each in reads) != sorted(left) or {each.last_id for each in reads} != {backlog.last_id}:
        raise CheckFailed("a subscriber did not receive exactly the events after its position")
    return {
        "events_from_mongod": returned,
        "events_delivered": sum(left),
        "streams_left": len(streams),
        "elapsed_s": max(each.ended_s for each in reads) - min(each.began_s for each in reads),
        "mongod_cpu_s": used.mongod,
        "server_cpu_s": used.server,
    }


async def _store_positions(stage: Stage, backlog: Backlog, feed: feedmux.Feed, read: dict[str, int]) -> None:
    """Create durable subscriptions with positions after the given numbers of events of the backlog, as after an ack."""
    tokens: dict[int, dict[str, Any] | None] = {}
    wanted = set(read.values())
    async with feedmux.AsyncClient(stage.endpoint) as client:
        async with client.feed(feed).open(start=backlog.start) as session:
            async for batch in session.batches():
                for sequence in wanted & set(range(batch.first_sequence, batch.last_sequence + 1)):
                    tokens[sequence] = batch.event_token(sequence - batch.first_sequence)
                if batch.last_sequence >= max(wanted):
                    break
        for name, sequence in read.items():
            start: feedmux.Start | bytes = feedmux.Start.operation_time(backlog.start)
            token = tokens.get(sequence)
            if token is not None:
                start = (await client.resolve(feedmux.Start.resume_after(token), feed)).position
            await client.create_subscription(name, feed, start=start)
