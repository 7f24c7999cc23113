"""What MongoDB is asked for while existing documents are copied, and which feeds allow a copy. Pure.

`_id`s are passed on as the bytes that MongoDB sent: a type that Python has no value for, or that pymongo would turn
into another type, stays what it is.

A tenant's policy recognizes what it made itself by the event's token (`core.grants.hidden`), which nobody knows when
he writes a document. The token of a copied document is a time, and can be guessed. So while the policy runs, a secret
is in its place, which differs from read to read.
"""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import SIMPLE_COLLATION, Scope
from feedmux_server.core.feeds.stream_key import SPLIT, StreamKey, policy_stages, user_stages
from feedmux_server.core.positions.resume_token import Copied, ResumeToken, key_string

_NAME: Final = b"_id\x00"
_LITERAL: Final = b"$literal\x00"
_MAX_KEY: Final = b"\x7f"
_MIN_KEY: Final = b"\xff"
ID_CHANGED: Final = "the pipeline changed _id"
"""In the error of MongoDB for a document whose `_id` the pipeline removed or changed."""
ID_CHANGED_CODE: Final = 40228


def gate(copied: Copied) -> dict[str, Any]:
    """The stage that lets through the changes to documents that were copied, every event that is of no document, and
    every delete.

    Deletes always pass: a reader that was interrupted may have applied documents that it has not acknowledged. They are
    read again as of a later time, when they may be gone.
    """
    passes: list[dict[str, Any]] = [{"operationType": "delete"}, {"documentKey": {"$exists": False}}]
    here: dict[str, Any] = {}
    if copied.collection:
        here = {"ns.db": copied.database, "ns.coll": copied.collection}
        passes += _before(*copied.namespace)
    if copied.up_to:
        passes.append({**here, "$expr": {"$lte": ["$documentKey._id", _literal(copied.up_to)]}})
    return {"$match": {"$or": passes}}


def _before(database: str, collection: str) -> list[dict[str, Any]]:
    """The conditions for the collections before this one."""
    return [{"ns.db": {"$lt": database}}, {"ns.db": database, "ns.coll": {"$lt": collection}}]


def bound(key: StreamKey, copied: Copied, count: int, end: bytes = b"") -> dict[str, Any] | None:
    """The command that finds the `_id` of the document `count` documents after those copied, from the index alone, and
    before the `_id` in `end` if that is set; None if there can be none.

    A pipeline may drop every document of a read, and so each read has an end that is known before. MongoDB finds no
    MaxKey, and rejects a search before MinKey: there, as after the last documents, a read needs no bound.
    """
    if copied.up_to[4:5] == _MAX_KEY or end[4:5] == _MIN_KEY:
        return None
    return {
        "find": read_scope(key, copied).collection,
        **({"min": RawBSONDocument(copied.up_to)} if copied.up_to else {}),
        **({"max": RawBSONDocument(end)} if end else {}),
        "hint": {"_id": 1},
        "sort": {"_id": 1},
        "skip": count if copied.up_to else count - 1,  # `min` finds the last copied document too
        "limit": 1,
        "singleBatch": True,
        "projection": {"_id": 1},
    }


def may_drop(key: StreamKey) -> bool:
    """Whether stages of the policy or of the user may drop documents of a copy."""
    return bool(policy_stages(key) or _on_documents(key))


def documents(
    key: StreamKey,
    copied: Copied,
    cluster_time: int,
    up_to: bytes = b"",
    secret: str = "",
    *,
    has_policy: bool = True,
    has_pipeline: bool = True,
) -> list[Any]:
    """The stages that return the documents after those copied, up to the `_id` in `up_to` (empty: all of them), as of
    `cluster_time`, as insert events at the high-water mark after it. `secret`: of this read, for the policy. Whether
    the stages of the policy, and those of the user, are among them."""
    scope = read_scope(key, copied)
    mark = key_string(ResumeToken.high_water_mark(cluster_time + 1))
    assert mark is not None
    token = mark.hex().upper()
    if key.policy and not secret:
        raise ValueError("a policy needs a secret")
    policy = policy_stages(key) if has_policy else []
    stages = _on_documents(key) if has_pipeline else []
    namespace = {"db": {"$literal": scope.database}, "coll": {"$literal": scope.collection}}
    # All small collections are read as of one time.
    beside = {"ns": namespace} if copied.collection else {}
    event = {
        "_id": {"_data": secret if policy else token, "snapshot": {"_id": "$_id", **beside}},
        "operationType": "insert",
        "clusterTime": Timestamp(cluster_time >> 32, cluster_time & 0xFFFF_FFFF),
        "wallTime": datetime.fromtimestamp(cluster_time >> 32, UTC),
        "fullDocument": "$$ROOT",
        "ns": namespace,
        "documentKey": {"_id": "$_id"},
    }
    return [
        *_after(copied, up_to),
        {"$sort": {"_id": 1}},
        {"$replaceWith": event},
        *([*policy, _with_token(token)] if policy else ()),
        *([*stages, _with_same_id(token, beside)] if stages else ()),
    ]


def probe() -> list[Any]:
    """Stages that find documents as `documents` does, to ask how MongoDB would find them."""
    return [*_after(Copied(bson.encode({"_id": 0}))), {"$sort": {"_id": 1}}]


def read_scope(key: StreamKey, copied: Copied) -> Scope:
    """The collection whose documents are read."""
    scope = key.spec.scope
    return replace(scope, database=copied.database, collection=copied.collection) if copied.collection else scope


def check_feed(key: StreamKey) -> None:
    """Raises SNAPSHOT_UNSUITABLE for a feed whose documents cannot be copied, whatever its collection is."""
    spec = key.spec
    if spec.collation not in (b"", SIMPLE_COLLATION):
        raise unsuitable("collation", "existing documents cannot be copied for a feed with a collation")


def check_range(place: ResumeToken, key: StreamKey, what: str) -> None:
    """Raises SNAPSHOT_UNSUITABLE for a position within a copy of which no range can be read."""
    if place.copied is None:
        return
    if not key.spec.scope.collection:
        raise unsuitable(
            "mode",
            f"{what} is within a copy of several collections, and PlanRange and ReadRange read copies of one; read the"
            " copy with Subscribe or Watch to its end, or begin at another position",
        )
    if key.judges_documents or any("$match" in stage or "$redact" in stage for stage in _on_documents(key)):
        # A position does not say how far the documents were passed that are left out. So each range would pass them
        # again; and a change that lets one in would be missing from a range that is read again.
        raise unsuitable(
            "filter",
            f"{what} is within a copy, and PlanRange and ReadRange read copies of feeds that leave out no document:"
            " without $match and $redact, and without a grant that has a condition; filter what is read, or read the"
            " copy with Subscribe or Watch",
        )


def unsuitable(kind: str, message: str) -> FeedmuxError:
    return FeedmuxError(ErrorReason.SNAPSHOT_UNSUITABLE, message, {"kind": kind})


def _on_documents(key: StreamKey) -> list[RawBSONDocument]:
    """The user's stages, without the one that only change streams have: the server cuts large documents itself."""
    return [stage for stage in user_stages(key) if SPLIT not in stage]


def _with_token(token: str) -> dict[str, Any]:
    """Puts the token in the place of the secret. A new document, as at the end of the policy, so that MongoDB moves no
    stage of the user before it."""
    return {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"_id": {"_data": token, "snapshot": "$_id.snapshot"}}]}}


def _with_same_id(token: str, beside: dict[str, Any]) -> dict[str, Any]:
    """Fails where the user's stages changed `_id`, as every change stream does: MongoDB still knows by what it sorted
    the documents."""
    same = {"_data": token, "snapshot": {"_id": {"$first": [{"$meta": "sortKey"}]}, **beside}}
    return {"$replaceWith": {"$cond": [{"$eq": ["$_id", same]}, "$$ROOT", ID_CHANGED]}}


def _after(copied: Copied, up_to: bytes = b"") -> list[dict[str, Any]]:
    # `$expr` compares across types, in the order of the `_id` index; `{_id: {$gt: …}}` would stay within one type.
    limits = [{"$gt": ["$_id", _literal(copied.up_to)]}] if copied.up_to else []
    if up_to:
        limits.append({"$lte": ["$_id", _literal(up_to)]})
    if not limits:
        return []
    return [{"$match": {"$expr": limits[0] if len(limits) == 1 else {"$and": limits}}}]


def _literal(up_to: bytes) -> RawBSONDocument:
    """`{$literal: v}` of `{_id: v}`."""
    kind, value = up_to[4:5], up_to[5 + len(_NAME) :]
    content = kind + _LITERAL + value
    return RawBSONDocument((len(content) + 4).to_bytes(4, "little") + content)
