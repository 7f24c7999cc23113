"""The data: orders whose insert events have 534 bytes on the wire, the event size of the documented measurements."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import MongoClient, WriteConcern

from bench.report import progress
from bench.settings import COLLECTION, DATABASE

EVENT_BYTES = 534
FIRST_ID = 1_000_000
"""From here to 8 million, an `_id` takes the same space in a resume token, so that all events have the same size."""
_INSERT_BATCH = 5_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """Events in the oplog."""

    start: Timestamp
    """The operation time before the first insert."""
    count: int
    event_bytes: float
    """The measured mean size of an event."""
    padding: str

    @property
    def last_id(self) -> int:
        return FIRST_ID + self.count - 1


def order(number: int, padding: str) -> dict[str, Any]:
    """Return a document. `sent_ns` is the monotonic clock just before the write."""
    return {
        "_id": number,
        "customer": f"c-{number % 100_000:05}",
        "status": "placed",
        "quantity": 3,
        "price": 19.99,
        "sent_ns": time.monotonic_ns(),
        "note": padding,
    }


def load(client: MongoClient[dict[str, Any]], count: int) -> Backlog:
    """Insert `count` documents and return where their events are. Closes the client."""
    progress(f"loading {count:,} events")
    with client:
        padding = find_padding(client)
        start = operation_time(client)
        orders = client[DATABASE].get_collection(COLLECTION, write_concern=WriteConcern(1))
        for first in range(0, count, _INSERT_BATCH):
            numbers = range(FIRST_ID + first, FIRST_ID + min(first + _INSERT_BATCH, count))
            orders.insert_many([order(number, padding) for number in numbers], ordered=True)
        # A majority write after them: writes that are not majority-committed do not appear in a change stream yet.
        client[DATABASE].get_collection("marks", write_concern=WriteConcern("majority")).insert_one({})
        sizes = [len(raw) for raw in _events(client, COLLECTION, start, min(count, 1_000))]
    return Backlog(start, count, sum(sizes) / len(sizes), padding)


def find_padding(client: MongoClient[dict[str, Any]]) -> str:
    """Return the padding that makes an insert's event EVENT_BYTES long."""
    start, sample = operation_time(client), "x" * len(COLLECTION)
    client[DATABASE][sample].insert_one(order(FIRST_ID - 1, ""))
    bare = len(next(_events(client, sample, start, 1)))
    # Random, so that WiredTiger's compression does not make the oplog smaller than a real one.
    letters = random.Random(0).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=EVENT_BYTES - bare)
    return "".join(letters)


def operation_time(client: MongoClient[dict[str, Any]]) -> Timestamp:
    """Return the operation time right after the last write."""
    with client.start_session() as session:
        client.admin.command("ping", session=session)
        time_ = session.operation_time
    assert time_ is not None
    return Timestamp(time_.time, time_.inc + 1)


def _events(client: MongoClient[dict[str, Any]], collection: str, start: Timestamp, count: int) -> Iterator[bytes]:
    raw: Any = client[DATABASE].get_collection(collection, CodecOptions(document_class=RawBSONDocument))
    with raw.watch(start_at_operation_time=start) as stream:
        for _ in range(count):
            yield bytes(next(stream).raw)
