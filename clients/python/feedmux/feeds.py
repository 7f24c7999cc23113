"""Feeds and starts as the user specifies them. `requests` writes these to the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal, TypedDict

import bson
from bson.timestamp import Timestamp

Format = Literal["bson", "extended_json_relaxed", "extended_json_canonical"]
FullDocument = Literal["default", "updateLookup", "whenAvailable", "required"]
FullDocumentBeforeChange = Literal["off", "whenAvailable", "required"]
ReadPreference = Literal["primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"]
OnInvalidate = Literal["stop", "continue"]
OnHistoryLost = Literal["fail", "earliest", "snapshot"]
AfterDeadLetter = Literal["skip", "quarantine"]
Pipeline = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Feed:
    """A feed: scope, pipeline and MongoDB's change stream options.

    Without `collection` the feed covers the whole database, without `database` the whole deployment. An empty `source`
    means the client's `source`. `pipeline` is a list of stages, or a JSON array of them as text, which the server
    parses (docs/pipelines.md). An option left out is not sent to MongoDB. `extra_options` has the names of options of
    newer MongoDB versions that are true, such as `showCommitTimestamp`.
    """

    database: str | None = None
    collection: str | None = None
    pipeline: Pipeline | str | None = None
    full_document: FullDocument | None = None
    full_document_before_change: FullDocumentBeforeChange | None = None
    show_expanded_events: bool = False
    collation: Mapping[str, Any] | None = None
    comment: Any = None
    batch_size: int = 0
    max_await_time_ms: int = 0
    read_preference: ReadPreference | None = None
    read_concern: str | None = None
    match_collection_uuid_for_update_lookup: bool = False
    source: str = ""
    extra_options: Sequence[str] = ()


class FeedArguments(TypedDict, total=False):
    """The fields of Feed as named arguments."""

    database: str | None
    collection: str | None
    pipeline: Pipeline | str | None
    full_document: FullDocument | None
    full_document_before_change: FullDocumentBeforeChange | None
    show_expanded_events: bool
    collation: Mapping[str, Any] | None
    comment: Any
    batch_size: int
    max_await_time_ms: int
    read_preference: ReadPreference | None
    read_concern: str | None
    match_collection_uuid_for_update_lookup: bool
    source: str
    extra_options: Sequence[str]


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: exactly one position or time. The class methods make it."""

    kind: Literal["position", "resume_after", "start_after", "operation_time", "time", "earliest", "latest", "snapshot"]
    token: bytes = field(default=b"", repr=False)
    time: tuple[int, int] = (0, 0)

    @classmethod
    def earliest(cls) -> "Start":
        """Start as far back as MongoDB's oplog reaches."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> "Start":
        """Start now."""
        return cls("latest")

    @classmethod
    def snapshot(cls) -> "Start":
        """Start with the documents that exist, as insert events; every change after them follows."""
        return cls("snapshot")

    @classmethod
    def position(cls, position: bytes) -> "Start":
        """Start after a position that feedmux returned."""
        return cls("position", bytes(position))

    @classmethod
    def resume_after(cls, token: Mapping[str, Any]) -> "Start":
        """Start as with MongoDB's resumeAfter."""
        return cls("resume_after", bson.encode(token))

    @classmethod
    def start_after(cls, token: Mapping[str, Any]) -> "Start":
        """Start as with MongoDB's startAfter, which also accepts the token of an invalidate event."""
        return cls("start_after", bson.encode(token))

    @classmethod
    def operation_time(cls, at: Timestamp) -> "Start":
        """Start at the first event at or after a cluster time."""
        return cls("operation_time", time=(at.time, at.inc))

    @classmethod
    def at_time(cls, at: datetime) -> "Start":
        """Start at the first event at or after a wall-clock time, cut to the second.

        A naive time is UTC, as in pymongo.
        """
        aware = at if at.tzinfo else at.replace(tzinfo=UTC)
        return cls("time", time=(int(aware.timestamp()), 0))


StartLike = Start | bytes | datetime | Timestamp | Mapping[str, Any] | Literal["earliest", "latest", "snapshot"]
"""Short forms: bytes are a position, and a mapping is a resume token, used as by `start_after`."""

_STARTS = (
    "a start is 'earliest', 'latest', 'snapshot', a datetime, a bson.Timestamp, a resume token, a position or a"
    " feedmux.Start"
)


def as_start(start: StartLike) -> Start:
    """Return the Start that a short form stands for. Raises TypeError or ValueError for anything else: a position that
    was not found is None, and must not mean now where a start is required."""
    match start:
        case Start():
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
        case "snapshot":
            return Start.snapshot()
        case str():
            raise ValueError(_no_start(start))
    raise TypeError(f"not a start: {type(start).__name__}; {_STARTS}")


def _no_start(text: str) -> str:
    shown = text if len(text) <= 20 else text[:19] + "…"  # tokens hold documents' keys
    return f'not a start: {shown!r}; {_STARTS}; a resume token is {{"_data": "82…"}}'


@dataclass(frozen=True, slots=True)
class Group:
    """How the members of a group share its events. What is left out has the server's default."""

    reconnect_time_s: float | None = None
    """How long a member without a connection keeps the events that it has not settled: 0 to 60, by default 5."""
    retry_first_s: float | None = None
    retry_most_s: float | None = None
    """The first and the longest delay before a failed event is delivered again."""
    attempts_max: int = 0
    """How often an event is delivered before it becomes a dead letter; 0: without a limit."""
    after_dead_letter: AfterDeadLetter | None = None
    """Whether the later events of the key of a dead letter are delivered (skip), or become dead letters too."""


class Unchanged(Enum):
    """The type of UNCHANGED."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""The default of an argument for which None means something."""


class CreateArguments(FeedArguments, total=False):
    """What a subscription is created with, as named arguments: a feed's fields and these."""

    start: StartLike | None
    """By default now."""
    on_invalidate: OnInvalidate
    """By default "stop"."""
    on_history_lost: OnHistoryLost
    """By default "fail"."""
    group: Group | None


class UpdateArguments(TypedDict, total=False):
    """What an update of a subscription changes, as named arguments."""

    feed: Feed | None
    on_invalidate: OnInvalidate | None
    on_history_lost: OnHistoryLost | None
    group: Group | Unchanged | None
    """None makes an ordinary subscription of a group."""
    etag: str
    """Guards against a concurrent update by another client."""


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """How far a copy of existing documents is. What the server cannot say is None, 0 or empty.

    `documents` counts the documents so far, with those of earlier sessions; after an interruption some may count twice.
    `bytes` counts the events of documents in this session. `documents_estimated` is MongoDB's estimate for the
    collection, which `documents` may exceed, and `remaining_s` the time left at the present rate. `read_time` is the
    cluster time as of which the last document was read.
    """

    running: bool
    """Whether documents are still to come."""
    documents: int
    bytes: int = 0
    documents_estimated: int = 0
    remaining_s: float | None = None
    read_time: Timestamp | None = None
    namespace: str = ""
    generation: int = 0
    """Which copy it is; 0 from a server that does not say."""

    @property
    def fraction(self) -> float | None:
        """The share of the documents that is copied, 0 to 1; None if their number is not known."""
        return min(1.0, self.documents / self.documents_estimated) if self.documents_estimated else None

    @property
    def documents_per_s(self) -> float | None:
        """The present rate; None if it is not known."""
        if not self.remaining_s:
            return None
        return (self.documents_estimated - self.documents) / self.remaining_s


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A durable subscription as the server stores it.

    `position` is the stored position: all events at or before it are processed. `cluster_time` is the cluster time of
    that position. `etag` changes with the definition. `active` says whether a session is open, `owner` which client has
    it, and `epoch` numbers the session.
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
    """When the server deletes the subscription if it stays unused; None: never, or not while it is open."""
    routing_key: str = ""
    """The key by which a proxy finds the replica that reads this feed."""
    snapshot: SnapshotStatus | None = None
    """Set while the stored position is within a copy of existing documents."""
    session_state: str = ""
    """What the open session does: `live`, `catch_up`, `lagging`, or `unacknowledged` (its client must acknowledge
    before it gets more events). Empty if the session is not one of the server that answers, and for a group."""
    unacked_events: int = 0
    """The events that this session has sent and its client has not acknowledged."""
    group: Group | None = None
    """Set if the subscription is a group."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What opening a feed would do, found out without opening it."""

    refusal: "Refusal | None"
    """Why the server would reject the feed; None: it would open the feed."""
    pipeline: str
    """The pipeline sent to MongoDB, in extended JSON, without the stages of the tenant's grants."""
    stream_key: str
    stream_open: bool
    """Whether the server already reads that stream."""
    images: tuple["CollectionImages", ...]
    oplog_headroom_s: float | None
    """Seconds from the oldest entry of the oplog to the start; None where unknown."""
    withheld: tuple["Withheld", ...]
    may_be_view: bool
    """Whether the feed may be served from one stream that reads its database or the deployment for many feeds."""
    scope_missing: bool = False
    """Whether the feed's collection does not exist now, or its database has no collections; False where unknown."""
    documents_estimated: int = 0
    """Of a start at `snapshot`: the number of documents that a copy would read; 0 where unknown."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error with which opening would fail."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class CollectionImages:
    """A collection that must store pre- and post-images, for the tenant's grants or only for the feed."""

    database: str
    collection: str
    enabled: bool
    for_grants: bool


@dataclass(frozen=True, slots=True)
class Withheld:
    """Something that the feed does not deliver."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class ResolvedPosition:
    """A position for storing, its cluster time, and that time as wall-clock time to the second (UTC)."""

    position: bytes
    cluster_time: Timestamp | None
    time: datetime | None
