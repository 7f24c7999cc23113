"""Events of groups as MongoDB 6.0 writes them, and chunks of them."""

from typing import Any

import bson
from bson.int64 import Int64
from bson.timestamp import Timestamp

from feedmux_server.core.events.chunk import Chunk, cut_batch
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim.events import BEGIN, event_token, hex_of

START = ResumeToken.high_water_mark(BEGIN)
DROPPED = "dropped"
"""The key of an event that has none."""


def group_event(n: int, key: Any, padding: int = 0) -> bytes:
    """Event `n`, an insert of the document `key`."""
    token = event_token(BEGIN + n + 1, key=n)
    time = token.cluster_time
    fields: dict[str, Any] = {
        "_id": {"_data": hex_of(token)},
        "operationType": "drop" if key is DROPPED else "insert",
        "clusterTime": Timestamp(time >> 32, time & 0xFFFFFFFF),
        "fullDocument": {"_id": key, "n": n, "pad": bytes(padding)},
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": key},
    }
    if key is DROPPED:
        del fields["documentKey"]
    return ordered(fields)


def in_transaction(**fields: Any) -> dict[str, Any]:
    """The fields of an event after those that MongoDB writes before them in a transaction."""
    return {"txnNumber": Int64(1), "lsid": {"id": bytes(16), "uid": bytes(32)}, **fields}


def ordered(fields: dict[str, Any]) -> bytes:
    """BSON with the fields in this order. The encoder would put `_id` first."""
    body = b"".join(bson.encode({name: value})[4:-1] for name, value in fields.items())
    return (len(body) + 5).to_bytes(4, "little") + body + b"\0"


def number_of(data: bytes) -> int:
    return int(bson.decode(data)["fullDocument"]["n"])


def chunks_of(events: list[bytes], per_chunk: int = 1000) -> list[Chunk]:
    place, made = START, list[Chunk]()
    for begin in range(0, len(events), per_chunk):
        made += cut_batch(b"".join(events[begin : begin + per_chunk]), place, None, 0.0, bytes_max=1 << 26)
        place = made[-1].end
    return made
