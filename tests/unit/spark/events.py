"""Change events as MongoDB sends them, for tests of rows."""

from datetime import UTC, datetime
from typing import Any

import bson
from bson.timestamp import Timestamp

WALL = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)


def token(
    seconds: int, increment: int, *, index: int = 0, version: int = 2, invalidate: bool = False, tail: str = ""
) -> dict[str, Any]:
    """A resume token of an event. `index` is that within a transaction, `tail` the hex of what names the event."""
    text = (
        f"82{seconds:08X}{increment:08X}2B{2 * version:02X}{_number(128)}{_number(index)}{'6F' if invalidate else '6E'}"
    )
    return {"_data": f"{text}{tail or '5A1004' + 'AB' * 16}04"}


def _number(value: int) -> str:
    if not value:
        return "29"
    size = (2 * value).bit_length() + 7 >> 3
    return f"{0x2A + size:02X}{2 * value:0{2 * size}X}"


def event(number: int = 1, operation: str = "insert", *, seconds: int = 1_700_000_000, **fields: Any) -> dict[str, Any]:
    """An event of shop.orders; None for a field leaves it out."""
    found = {
        "_id": token(seconds, number),
        "operationType": operation,
        "clusterTime": Timestamp(seconds, number),
        "wallTime": WALL,
        "fullDocument": {"_id": number},
        "ns": {"db": "shop", "coll": "orders"},
        "documentKey": {"_id": number},
    } | fields
    return {name: value for name, value in found.items() if value is not None}


def stream(*events: dict[str, Any]) -> bytes:
    return b"".join(map(bson.encode, events))
