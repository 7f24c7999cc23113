"""Pipelines that only choose events by operation type or collection: such a feed is a part of a wider stream.

The language is a small part of MongoDB's, which can be judged here exactly: `$match` stages with strings, `$eq` or
`$in` on `operationType` and `ns.coll`. Whatever else a pipeline says stays with MongoDB.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import bson

from feedmux_server.core.feeds.feed import SIMPLE_COLLATION, FeedSpec
from feedmux_server.core.feeds.stream_key import has_stages


@dataclass(frozen=True, slots=True)
class SimpleFilter:
    """What is admitted; None admits all."""

    operations: frozenset[bytes] | None = None
    collections: frozenset[bytes] | None = None

    def admits(self, operation: bytes, collection: bytes) -> bool:
        return (self.operations is None or operation in self.operations) and (
            self.collections is None or collection in self.collections
        )


EVERYTHING: Final = SimpleFilter()
_PIPELINE_BYTES_MAX: Final = 64 * 1024
"""The quota's default, which takes half a millisecond to read. A larger one is not looked into: that would hold the
event loop."""
_FIELDS: Final = {"operationType": "operations", "ns.coll": "collections"}


def simple_filter_of(spec: FeedSpec) -> SimpleFilter | None:
    """What a feed's pipeline admits; None when it does anything else, or compares by a collation."""
    if not has_stages(spec):
        return EVERYTHING
    if spec.collation not in (b"", SIMPLE_COLLATION) or len(spec.pipeline) > _PIPELINE_BYTES_MAX:
        return None
    try:
        content = bson.decode(spec.pipeline)
        if bson.encode(content) != spec.pipeline:
            return None  # a field that comes twice
    except bson.errors.BSONError:
        return None
    admitted: dict[str, frozenset[bytes]] = {}
    for stage in content["pipeline"]:
        match = stage.get("$match") if len(stage) == 1 else None
        if not isinstance(match, Mapping):
            return None
        for name, condition in match.items():
            values = _values(condition)
            if name not in _FIELDS or values is None:
                return None
            field = _FIELDS[name]
            admitted[field] = admitted[field] & values if field in admitted else values
    return SimpleFilter(**admitted)


def _values(condition: Any) -> frozenset[bytes] | None:
    match condition:
        case str():
            return frozenset((condition.encode(),))
        case {"$eq": str() as value, **others} if not others:
            return frozenset((value.encode(),))
        case {"$in": [*values], **others} if not others and all(isinstance(each, str) for each in values):
            return frozenset(each.encode() for each in values)
    return None
