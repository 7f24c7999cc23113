"""`python -m demo.subscriber ENDPOINT NAME RECORD PER_SECOND ACK_S`: one subscriber, which records what it gets.

It writes 16 bytes per event to RECORD, a digest of the event's BSON, before it acknowledges the event: so all
acknowledged events are on record, also after kill -9. PER_SECOND above 0 makes it slow, until SIGUSR1 ends the limit.
It acknowledges at most every ACK_S seconds, so that a kill finds events that are processed and not yet acknowledged. It
ends after the order named `end`, and waits half a second more, in case an unexpected event arrives.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import feedmux
from demo.workload import END

DIGEST_BYTES = 16
_TELL_S = 0.15
WAIT_FOR_MORE_S = 0.5


def digest(event: bytes) -> bytes:
    """Return the digest of an event for a record: events with equal bytes count as the same event."""
    return hashlib.blake2b(event, digest_size=DIGEST_BYTES).digest()


def main(endpoint: str, name: str, record: str, per_second: float, ack_s: float) -> None:
    pace = _Pace(per_second)
    signal.signal(signal.SIGUSR1, pace.hurry)
    file = os.open(record, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    # A slow reader takes a little at a time; what it has not requested waits in the server or in MongoDB.
    window = 1_000 if per_second else feedmux.SessionOptions().window_events
    change, told_s, acked_s = 0, 0.0, time.monotonic()
    with (
        feedmux.Client(endpoint, api_key=os.environ["FEEDMUX_API_KEY"]) as client,
        client.subscription(name).open(on_notice=lambda _: None, window_events=window) as session,
    ):
        _tell(change, done=False)
        for batch in session.batches():
            os.write(file, b"".join(digest(event.raw) for event in batch))
            change = _last_change(batch.documents) or change
            pace.after(len(batch))
            ended = batch.documents[-1].get("documentKey") == {"_id": END}
            if ended or time.monotonic() - acked_s >= ack_s:
                acked_s = time.monotonic()
                session.ack(batch)
            if ended:
                threading.Timer(WAIT_FOR_MORE_S, session.close).start()
            if time.monotonic() - told_s > _TELL_S:
                told_s = time.monotonic()
                _tell(change, done=False)
    _tell(change, done=True)


class _Pace:
    """Slows the reader down after each batch."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second

    def hurry(self, *_: object) -> None:
        self._per_second = 0.0

    def after(self, events: int) -> None:
        started_s = time.monotonic()
        while self._per_second and time.monotonic() - started_s < events / self._per_second:
            time.sleep(0.02)


def _last_change(documents: Sequence[Mapping[str, Any]]) -> int:
    for document in reversed(documents):
        fields = document.get("fullDocument") or document.get("updateDescription", {}).get("updatedFields", {})
        if "change" in fields:
            return int(fields["change"])
    return 0


def _tell(change: int, *, done: bool) -> None:
    print(json.dumps({"change": change, "done": done}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
