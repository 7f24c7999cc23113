"""`python -m bench NAME`: runs a benchmark and prints its table, with --json also its result as the last line."""

import argparse
import asyncio
import importlib
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from bench.report import Result
from bench.settings import Settings

NAMES = {
    "single": "one loop over a backlog, beside pymongo's watch()",
    "fanout": "64 subscribers of one backlog, beside 64 watch()",
    "mongod": "mongod's CPU for 64 subscribers, beside one",
    "latency": "commit to client with 16 subscribers, beside 16 watch()",
    "idle": "memory of 2,000 idle subscriptions",
    "slow": "the others' latency while one of 16 subscribers is stopped",
    "restart": "what MongoDB returns when 64 subscribers reconnect at once",
    "neighbours": "a quiet tenant's latency beside nine noisy ones",
    "abuse": "a quiet tenant's latency beside one that does its worst within its default quotas",
    "backpressure": "what a slow Spark sink makes of MongoDB's reading and of memory, beside a fast one",
    "wide": "a thousand collections with a subscriber each, beside a watch() for each",
    "scale": "what one step holds the event loop for beside 5,000 feeds, beside 100",
    "spark": "a backlog through PySpark, beside MongoDB's Spark connector",
    "commit": "Redis commands at 100,000 acked events/s, beside 1,000",
    "telemetry": "the server's CPU for an event with metrics on, beside off",
    "snapshot": "a copy of existing documents, beside a bare find in the same order",
    "snapshot-debezium": "the same copy, beside Debezium's engine",
    "snapshot-live": "a live subscriber's latency while ten copies run, beside none",
    "clients": "one loop over a backlog in each language, beside the Python client",
    "group": "eight members of a group with 1 ms of work for each event, beside one",
    "group-jetstream": "eight processes that share a backlog, beside those of a consumer of NATS JetStream",
    "group-hot-key": "a group whose events are all of one document, beside an ordinary subscription",
    "group-held-key": "the latency of a group while keys are held and members come and go, beside none",
}


async def run(name: str, settings: Settings) -> Result:
    """Run one benchmark by name."""
    benchmark: Callable[[Settings], Awaitable[Result]] = importlib.import_module(f"bench.{name.replace('-', '_')}").run
    return await benchmark(settings)


def main() -> int:
    args = _arguments()
    if args.name == "list":
        for name, what in NAMES.items():
            print(f"{name:17} {what}")
        return 0
    settings = Settings(args.events, args.runs, args.quick or args.tiny, args.tiny, args.vector)
    results: list[dict[str, Any]] = []
    for name in NAMES if args.name == "all" else (args.name,):
        result = asyncio.run(_interruptible(name, settings))
        print(f"\n{result.as_table()}\n", flush=True)
        results.append(result.as_json())
    if args.json:
        print(json.dumps(results[0] if args.name != "all" else {"name": "all", "results": results}))
    return 0


async def _interruptible(name: str, settings: Settings) -> Result:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await run(name, settings)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench", description="Runs benchmarks, each beside its alternative.")
    parser.add_argument(
        "name", choices=[*NAMES, "all", "list"], metavar="NAME", help=f"{', '.join(NAMES)}, all or list"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of standard output")
    parser.add_argument("--events", metavar="N", type=_positive, help="number of events in the backlog")
    parser.add_argument(
        "--runs", metavar="N", type=_positive, default=3, help="number of measurements of each side, in turn (3)"
    )
    parser.add_argument("--quick", action="store_true", help="use smaller sizes, with rougher figures")
    parser.add_argument("--vector", metavar="NAME", help="for `abuse`: run only this kind of abuse, or `together`")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("1 or more")
    return number


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
