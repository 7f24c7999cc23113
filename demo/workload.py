"""`python -m demo.workload URI RATE`: mixed changes in shop.orders until SIGTERM, then one last order named `end`.

Reports on standard output how many writes MongoDB has acknowledged.
"""

import json
import signal
import sys
import time
from typing import Any

from pymongo import MongoClient, ReplaceOne

from feedmux_server.cli.sample_workload import COLLECTION, DATABASE, Shop

END = "end"
_TICK_S = 0.02
_TELL_S = 0.1
_BULK_MAX = 1_000


def main(uri: str, rate: float) -> None:
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    shop = Shop(seed=7)
    kinds = dict.fromkeys(("inserts", "updates", "replaces", "deletes"), 0)
    with MongoClient[dict[str, Any]](uri) as client:
        orders = client[DATABASE][COLLECTION]
        started_s = told_s = time.monotonic()
        _tell(kinds, done=False)
        while not stopping:
            now_s = time.monotonic()
            due = min(int((now_s - started_s) * rate) - shop.changes, _BULK_MAX)
            if due > 0:
                # Unordered, all inserts go in one command, then all updates, then all deletes; still each order's
                # changes are in order, and it is ten times as fast.
                changes = [shop.change() for _ in range(due)]
                result = orders.bulk_write(changes, ordered=False)
                replaces = sum(isinstance(change, ReplaceOne) for change in changes)
                kinds["inserts"] += result.inserted_count
                kinds["updates"] += result.modified_count - replaces
                kinds["replaces"] += replaces
                kinds["deletes"] += result.deleted_count
            if now_s - told_s > _TELL_S:
                told_s = now_s
                _tell(kinds, done=False)
            time.sleep(_TICK_S)
        orders.insert_one({"_id": END, "change": shop.changes})
        kinds["inserts"] += 1
    _tell(kinds, done=True)


def _tell(kinds: dict[str, int], *, done: bool) -> None:
    print(json.dumps({"written": sum(kinds.values()), **kinds, "done": done}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
