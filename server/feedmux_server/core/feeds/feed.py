"""What a feed is: scope, pipeline and options, checked and ready to be hashed or sent to MongoDB.

`rpc` builds a `FeedSpec` from the protobuf `Feed` (or from the stored definition); `source` builds the
`$changeStream` aggregate from it. Values that only MongoDB can judge stay as the user gave them.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import bson

SIMPLE_COLLATION: Final = bson.encode({"locale": "simple"})
"""Compares bytes, as MongoDB does without a collation."""
EXTRA_OPTIONS: Final = (
    "showCommitTimestamp", "ignoreRemovedShards", "showMigrationEvents", "showSystemEvents", "showRawUpdateDescription",
)  # fmt: skip
"""MongoDB's options that are passed on by name. Others could change the scope or the start."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is watched: a collection, a database (`collection` empty) or the deployment (both empty)."""

    source: str
    database: str = ""
    collection: str = ""

    @property
    def namespace(self) -> str:
        """`*`, `database` or `database.collection`."""
        if not self.database:
            return "*"
        return f"{self.database}.{self.collection}" if self.collection else self.database


def route_of(scope: Scope) -> str:
    """The header by which a proxy sends the readers of one scope to one replica: ASCII, whatever the names hold.

    Clients compute it too (docs/replicas.md).
    """
    return hashlib.sha256(f"{scope.source}/{scope.namespace}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """A feed as the user defined it. BSON values are bytes, so that equality means equality on the wire."""

    scope: Scope
    pipeline: bytes = b""
    """BSON document `{pipeline: [stages]}`; empty for no stages."""
    full_document: str = ""
    full_document_before_change: str = ""
    show_expanded_events: bool = False
    match_collection_uuid_for_update_lookup: bool = False
    extra_options: tuple[str, ...] = ()
    """Sorted; each is one of `EXTRA_OPTIONS`."""
    collation: bytes = b""
    comment: bytes = b""
    """BSON document `{comment: value}`."""
    read_preference: str = ""
    read_concern: str = ""
    batch_size: int = 0
    max_await_time_ms: int = 0
    bounded: bool = False
    """Whether the pipeline passed the check for tenants with `pipelines: bounded`. No part of the stream key."""


def change_stream_options(spec: FeedSpec) -> dict[str, Any]:
    """The contents of the `$changeStream` stage, without where to begin."""
    options: dict[str, Any] = {}
    if spec.full_document:
        options["fullDocument"] = spec.full_document
    if spec.full_document_before_change:
        options["fullDocumentBeforeChange"] = spec.full_document_before_change
    if spec.show_expanded_events:
        options["showExpandedEvents"] = True
    if spec.match_collection_uuid_for_update_lookup:
        options["matchCollectionUUIDForUpdateLookup"] = True
    options |= dict.fromkeys(spec.extra_options, True)
    if not spec.scope.database:
        options["allChangesForCluster"] = True
    return options
