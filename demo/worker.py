"""`python -m demo.worker ENDPOINT NAME RECORD`: one worker of a group, which records what its handler does.

It writes a line to RECORD before and after each event: what (`begin`, `end`, `fail`), when (nanoseconds of the clock
that all processes share), the `_id` of the order, and which change of it. A line is written at once, so that it is on
record also after kill -9. SIGTERM ends the worker when the handlers in progress have ended.
"""

import os
import random
import sys
import time

import feedmux

NAME = "orders-workers"
CONCURRENCY = 4
_WORK_S = 0.002


def main(endpoint: str, record: str) -> None:
    file = os.open(record, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def note(what: str, event: feedmux.MemberEvent) -> None:
        order = event.document["fullDocument"]
        os.write(file, f"{what} {time.monotonic_ns()} {order['_id']} {order['change']}\n".encode())

    def handle(event: feedmux.MemberEvent) -> None:
        note("begin", event)
        try:
            float(event.document["fullDocument"]["amount"])
        except ValueError:
            note("fail", event)
            raise
        time.sleep(random.uniform(0.0, 2 * _WORK_S))
        note("end", event)

    with feedmux.Client(endpoint, api_key=os.environ["FEEDMUX_API_KEY"]) as client:
        member = client.subscription(NAME).join(on_notice=lambda _: None)
        print('{"joins": true}', flush=True)
        member.run(handle, concurrency=CONCURRENCY)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
