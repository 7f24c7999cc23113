"""`python -m tests.wide --seconds 3600`: compare views with MongoDB's own streams, round after round.

Exits with 1 at the first difference, and prints the seed that repeats it.
"""

import argparse
import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

from pymongo import MongoClient

from feedmux_embedded import RedisServer, ReplicaSet
from tests.integration.servers import serving, settings
from tests.wide.differential import Options, Round, compare

OPTIONS: tuple[Options, ...] = (
    (),
    (("show_expanded_events", True),),
    (("full_document", "whenAvailable"), ("full_document_before_change", "whenAvailable")),
)

SERVERS: tuple[dict[str, Any], ...] = (
    {"feeds_min": 2},
    {"feeds_min": 9, "inbox_bytes": 64 << 10},
    {"enabled": False},
    {"feeds_min": 2},
)
"""The section `wide` of each compared server's configuration. The last server has hardly any memory."""
MEMORY_OF_LAST = 128 << 10


async def run(seconds: float, seed: int, steps: int) -> int:
    rounds: list[Round] = []
    async with AsyncExitStack() as stack:
        mongo = await stack.enter_async_context(ReplicaSet(oplog_mb=1024))
        redis = await stack.enter_async_context(RedisServer())
        client: MongoClient[dict[str, Any]] = stack.enter_context(MongoClient(mongo.uri))
        here = [
            await stack.enter_async_context(serving({**settings(mongo.uri, redis.url), "wide": wide}))
            for wide in SERVERS
        ]
        here[-1].server.service.manager.memory.bytes_max = MEMORY_OF_LAST
        began_s = time.monotonic()
        while (elapsed_s := time.monotonic() - began_s) < seconds:
            options = OPTIONS[len(rounds) % len(OPTIONS)]
            found = await compare(
                [each.api for each in here], client, seed, steps=steps, options=options, patience_s=300.0
            )
            rounds.append(found)
            events = sum(each.events for each in rounds)
            print(f"{elapsed_s:6.0f} s  seed {seed}  {found.events:6,} events  {events:9,} in all", flush=True)
            if found.differences:
                print("\n".join(found.differences), f"again: --seed {seed} --steps {steps}", sep="\n", file=sys.stderr)
                break
            seed += 1
    print(
        json.dumps(
            {
                "seconds": round(elapsed_s),
                "rounds": len(rounds),
                "last_seed": seed,
                "feeds": sum(each.feeds for each in rounds),
                "events": sum(each.events for each in rounds),
                "ended_by_an_invalidate": sum(each.ended for each in rounds),
                "moved_between_servers": sum(each.hops for each in rounds),
                "views_at_most": max(each.views for each in rounds),
                "differences": sum(len(each.differences) for each in rounds),
            }
        )
    )
    return 1 if rounds[-1].differences else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wide", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long (3600)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (1); each round has the next")
    parser.add_argument("--steps", type=int, default=300, help="writes and definitions of a round (300)")
    args = parser.parse_args()
    return asyncio.run(run(args.seconds, args.seed, args.steps))


if __name__ == "__main__":
    sys.exit(main())
