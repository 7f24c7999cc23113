"""What MongoDB is asked for while existing documents are copied, and which feeds allow a copy. Pure.

`_id`s are passed on as the bytes that MongoDB sent: a type that Python has no value for, or that pymongo would turn
into another type, stays what it is.
"""

from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.stream_key import StreamKey, effective_stages, has_stages
from feedmux_server.core.positions.resume_token import Copied, ResumeToken, key_string

_NAME: Final = b"_id\x00"
_LITERAL: Final = b"$literal\x00"


def gate(copied: Copied) -> dict[str, Any]:
    """The stage that lets through the changes to documents that were copied, every event that is of no document, and
    every delete.

    Deletes always pass: a reader that was interrupted may have applied documents that it has not acknowledged. They are
    read again as of a later time, when they may be gone.
    """
    passes: list[dict[str, Any]] = [{"operationType": "delete"}, {"documentKey": {"$exists": False}}]
    if copied.up_to:
        passes.append({"$expr": {"$lte": ["$documentKey._id", _literal(copied)]}})
    return {"$match": {"$or": passes}}


def documents(key: StreamKey, copied: Copied, cluster_time: int) -> list[Any]:
    """The stages that return the documents after those copied, as of `cluster_time`, as insert events at the
    high-water mark after it."""
    scope = key.spec.scope
    mark = key_string(ResumeToken.high_water_mark(cluster_time + 1))
    assert mark is not None
    event = {
        "_id": {"_data": mark.hex().upper(), "snapshot": {"_id": "$_id"}},
        "operationType": "insert",
        "clusterTime": Timestamp(cluster_time >> 32, cluster_time & 0xFFFF_FFFF),
        "wallTime": datetime.fromtimestamp(cluster_time >> 32, UTC),
        "fullDocument": "$$ROOT",
        "ns": {"db": {"$literal": scope.database}, "coll": {"$literal": scope.collection}},
        "documentKey": {"_id": "$_id"},
    }
    return [*_after(copied), {"$sort": {"_id": 1}}, {"$replaceWith": event}]


def probe() -> list[Any]:
    """Stages that find documents as `documents` does, to ask how MongoDB would find them."""
    return [*_after(Copied(bson.encode({"_id": 0}))), {"$sort": {"_id": 1}}]


def check_feed(key: StreamKey) -> None:
    """Raises SNAPSHOT_UNSUITABLE for a feed whose documents cannot be copied, whatever its collection is."""
    spec = key.spec
    if not spec.scope.collection:
        raise unsuitable("scope", "only the documents of one collection can be copied; name the collection")
    if key.policy:
        raise unsuitable(
            "grants",
            "existing documents cannot be copied where the tenant's grants narrow the feed (a match, hidden fields, or"
            " a grant of less than the whole database)",
        )
    if spec.collation:
        raise unsuitable("collation", "existing documents cannot be copied for a feed with a collation")
    if has_stages(spec) or effective_stages(key):
        raise unsuitable("pipeline", "existing documents cannot be copied for a feed with a pipeline")


def check_no_copy(place: ResumeToken, what: str) -> None:
    """Raises SNAPSHOT_UNSUITABLE for a position within a copy, where a range is read."""
    if place.copied is not None:
        raise unsuitable(
            "mode",
            f"{what} is within a copy of existing documents, which PlanRange and ReadRange cannot read; read the copy"
            " with Subscribe or Watch to its end, or begin at another position",
        )


def unsuitable(kind: str, message: str) -> FeedmuxError:
    return FeedmuxError(ErrorReason.SNAPSHOT_UNSUITABLE, message, {"kind": kind})


def _after(copied: Copied) -> list[dict[str, Any]]:
    # `$expr` compares across types, in the order of the `_id` index; `{_id: {$gt: …}}` would stay within one type.
    return [{"$match": {"$expr": {"$gt": ["$_id", _literal(copied)]}}}] if copied.up_to else []


def _literal(copied: Copied) -> RawBSONDocument:
    """`{$literal: v}` of `{_id: v}`."""
    kind, value = copied.up_to[4:5], copied.up_to[5 + len(_NAME) :]
    content = kind + _LITERAL + value
    return RawBSONDocument((len(content) + 4).to_bytes(4, "little") + content)
