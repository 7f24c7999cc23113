"""What to watch and where to begin, as the user says it. `requests` writes these to the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import bson
from bson.timestamp import Timestamp

Format = Literal["bson", "extended_json_relaxed", "extended_json_canonical"]
OnInvalidate = Literal["stop", "continue"]
OnHistoryLost = Literal["fail", "earliest"]
Pipeline = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed: scope, pipeline and MongoDB's change stream options.

    No `collection` is the whole database, no `database` the whole deployment; an empty `source` is the client's own.
    `pipeline` is a list of stages, or the same as an extended JSON array. An option left out is not sent to MongoDB.
    """

    database: str | None = None
    collection: str | None = None
    pipeline: Pipeline | str | None = None
    full_document: str | None = None
    full_document_before_change: str | None = None
    show_expanded_events: bool = False
    collation: Mapping[str, Any] | None = None
    comment: Any = None
    batch_size: int = 0
    max_await_time_ms: int = 0
    read_preference: str | None = None
    read_concern: str | None = None
    match_collection_uuid_for_update_lookup: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin; made by its class methods. Exactly one place."""

    kind: Literal["position", "resume_after", "start_after", "operation_time", "time", "earliest", "latest"]
    token: bytes = field(default=b"", repr=False)
    time: tuple[int, int] = (0, 0)

    @classmethod
    def earliest(cls) -> "Start":
        """As far back as MongoDB's oplog reaches."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> "Start":
        """From now."""
        return cls("latest")

    @classmethod
    def position(cls, position: bytes) -> "Start":
        """Behind a position that feedmux gave out."""
        return cls("position", bytes(position))

    @classmethod
    def resume_after(cls, token: Mapping[str, Any]) -> "Start":
        """MongoDB's resumeAfter."""
        return cls("resume_after", bson.encode(token))

    @classmethod
    def start_after(cls, token: Mapping[str, Any]) -> "Start":
        """MongoDB's startAfter: also behind an invalidate event."""
        return cls("start_after", bson.encode(token))

    @classmethod
    def operation_time(cls, at: Timestamp) -> "Start":
        """The first event at or after a cluster time."""
        return cls("operation_time", time=(at.time, at.inc))

    @classmethod
    def at_time(cls, at: datetime) -> "Start":
        """The first event at or after a wall-clock time, by the whole second. A naive time is UTC, as pymongo's are."""
        aware = at if at.tzinfo else at.replace(tzinfo=UTC)
        return cls("time", time=(int(aware.timestamp()), 0))


StartLike = Start | bytes | datetime | Timestamp | Mapping[str, Any] | Literal["earliest", "latest"]
"""Short forms: bytes are a position, a mapping is a resume token (as of start_after)."""


def as_start(start: StartLike | None) -> Start | None:
    """The Start that a short form stands for. Raises TypeError or ValueError for anything else."""
    match start:
        case None | Start():
            return start
        case bytes():
            return Start.position(start)
        case datetime():
            return Start.at_time(start)
        case Timestamp():
            return Start.operation_time(start)
        case Mapping():
            return Start.start_after(start)
        case "earliest":
            return Start.earliest()
        case "latest":
            return Start.latest()
        case str():
            raise ValueError(f"not a start: {start!r}")
    raise TypeError(f"not a start: {type(start).__name__}")


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A durable subscription as the server has it.

    `position` is stored: everything at or before it is processed; `cluster_time` is its time. `etag` changes with the
    definition. `active` says whether a session is open, `owner` whose, `epoch` which.
    """

    name: str
    feed: Feed
    on_invalidate: OnInvalidate
    on_history_lost: OnHistoryLost
    position: bytes
    cluster_time: Timestamp | None
    create_time: datetime | None
    update_time: datetime | None
    etag: str
    active: bool
    owner: str
    epoch: int
    expire_time: datetime | None = None
    """When the server deletes it unless it is used before; None: never, or not while it is open."""
    routing_key: str = ""
    """By which a proxy finds the replica that reads this feed."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What opening a feed would do, without doing it."""

    refusal: "Refusal | None"
    """None: it would be opened."""
    pipeline: str
    """What MongoDB is asked, in extended JSON; the stages of the tenant's grants are not shown."""
    stream_key: str
    stream_open: bool
    """Whether the server reads that stream already."""
    images: tuple["CollectionImages", ...]
    oplog_headroom_s: float | None
    """From the oldest entry of the oplog to the start; None where it is not known."""
    withheld: tuple["Withheld", ...]
    may_be_view: bool
    """Whether it may be served from one stream that reads its database or the deployment for many feeds."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """How opening would end."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class CollectionImages:
    """A collection whose stored pre- and post-images are needed, for the tenant's grants or only for the feed."""

    database: str
    collection: str
    enabled: bool
    for_grants: bool


@dataclass(frozen=True, slots=True)
class Withheld:
    """Something that does not come."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class ResolvedPosition:
    """A position to be stored, its cluster time, and the same as wall-clock time by the second (UTC)."""

    position: bytes
    cluster_time: Timestamp | None
    time: datetime | None
