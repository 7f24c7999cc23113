"""`python -m demo.replica ENDPOINT NAME RECORD`: keeps a copy of the collection, and writes it to RECORD.state.

Its subscription begins with the documents that exist, so it needs no other access to MongoDB. It applies each event to
the copy in memory and then acknowledges it. As `demo.subscriber`, it writes 16 bytes per event to RECORD, and ends half
a second after the order named `end`, or after the last document if that comes later.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bson

import feedmux
from demo.subscriber import WAIT_FOR_MORE_S, digest
from demo.workload import END

_END_KEY = bson.encode({"_id": END})


class Replica:
    """The documents of a collection, by the BSON of their keys."""

    def __init__(self) -> None:
        self.documents: dict[bytes, dict[str, Any]] = {}
        self.copied: int | None = None
        """The number of documents of the snapshot, once all of them have come."""

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply an event. An insert may be of a document that is there, and a delete of one that is not."""
        key = bson.encode(event["documentKey"])
        match event["operationType"]:
            case "delete":
                self.documents.pop(key, None)
            case "update":
                changed = event["updateDescription"]
                document = self.documents[key]
                document.update(changed["updatedFields"])  # the workload changes only fields at the top
                for name in changed["removedFields"]:
                    document.pop(name, None)
            case _:
                self.documents[key] = dict(event["fullDocument"])

    @property
    def complete(self) -> bool:
        """Whether nothing more is to come."""
        return self.copied is not None and _END_KEY in self.documents


def state_path(record: Path) -> Path:
    """Return the file with the documents, beside the record."""
    return record.with_name(f"{record.name}.state")


def main(endpoint: str, name: str, record: str) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it reads at full speed anyway
    replica, closing = Replica(), False
    file = os.open(record, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def close_at_the_end() -> None:
        nonlocal closing
        if replica.complete and not closing:
            closing = True
            threading.Timer(WAIT_FOR_MORE_S, session.close).start()

    def note(notice: feedmux.Notice) -> None:
        if isinstance(notice, feedmux.SnapshotComplete):
            replica.copied = notice.documents
            _tell(replica, done=False)
            close_at_the_end()

    with (
        feedmux.Client(endpoint, api_key=os.environ["FEEDMUX_API_KEY"]) as client,
        client.subscription(name).open(on_notice=note) as session,
    ):
        _tell(replica, done=False)
        for batch in session.batches():
            for event in batch.documents:
                replica.apply(event)
            os.write(file, b"".join(digest(event.raw) for event in batch))
            session.ack(batch)
            close_at_the_end()
    state_path(Path(record)).write_bytes(b"".join(map(bson.encode, replica.documents.values())))
    _tell(replica, done=True)


def _tell(replica: Replica, *, done: bool) -> None:
    print(json.dumps({"copied": replica.copied, "done": done}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
