"""Converts protobuf messages to the core's values and back, for every call."""

from typing import TypeVar

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.message import DecodeError, Message

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, subscriptions_pb2
from feedmux_server.core.delivery.copy_progress import CopyStatus
from feedmux_server.core.delivery.taken import BSON
from feedmux_server.core.errors import ErrorReason, FeedmuxError, invalid
from feedmux_server.core.events.bson_check import walk
from feedmux_server.core.feeds.feed import EXTRA_OPTIONS, FeedSpec, Scope
from feedmux_server.core.feeds.feed_check import FeedParts
from feedmux_server.core.feeds.names import check_scope
from feedmux_server.core.positions.resume_token import without_document
from feedmux_server.core.positions.start import Start, StartKind
from feedmux_server.rpc.bounds import TOKEN_BYTES_MAX, check_bounds, check_shape
from feedmux_server.store.model import StoredSubscription
from feedmux_server.workers.rendering import CANONICAL, RELAXED

TOKEN_FIELDS_MAX = 8
"""MongoDB's tokens have two."""
HEARTBEAT_DEFAULT_S = 10.0
MESSAGE_BYTES_DEFAULT = 1024 * 1024
MESSAGE_BYTES_MIN = 64 * 1024
MESSAGE_BYTES_MAX = 64 * 1024 * 1024

POLICIES = {"on_invalidate": feed_pb2.OnInvalidate, "on_history_lost": feed_pb2.OnHistoryLost}
"""The policies of a subscription, and their values."""
RETRY_AFTER_S = 1.0

M = TypeVar("M", bound=Message)

_FORMATS: dict[int, str] = {
    feed_pb2.FORMAT_UNSPECIFIED: BSON,
    feed_pb2.FORMAT_BSON: BSON,
    feed_pb2.FORMAT_EXTENDED_JSON_RELAXED: RELAXED,
    feed_pb2.FORMAT_EXTENDED_JSON_CANONICAL: CANONICAL,
}


def parse(kind: type[M], data: bytes) -> M:
    """Parse a message. Raises MESSAGE_INVALID if the bytes are not a message of this kind, and what `check_bounds`
    raises."""
    check_shape(kind.DESCRIPTOR, data)
    try:
        message = kind.FromString(data)
    except DecodeError:
        raise FeedmuxError(
            ErrorReason.MESSAGE_INVALID, f"the request is not a valid {kind.DESCRIPTOR.full_name}"
        ) from None
    check_bounds(message, len(data))
    return message


def feed_parts(feed: feed_pb2.Feed, *, bounded: bool) -> FeedParts:
    """The parts of a feed that take long to check, for `core.feeds.feed_check`. Raises FeedmuxError for a field over
    its bound."""
    check_bounds(feed, feed.ByteSize())
    notation = feed.pipeline.WhichOneof("notation")
    is_json = notation == "extended_json"
    pipeline = feed.pipeline.extended_json.encode() if is_json else feed.pipeline.bson
    if notation and not pipeline:
        # Most likely a variable that its program did not set: without a filter, everybody's events would come.
        message = "the pipeline is empty; write [] for one without stages"
        raise FeedmuxError(ErrorReason.PIPELINE_INVALID, message, {"path": "pipeline"}, field="feed.pipeline")
    return FeedParts(pipeline, is_json, feed.collation, feed.comment, bounded)


def feed_spec(feed: feed_pb2.Feed, *, bounded: bool) -> FeedSpec:
    """The feed without its pipeline. Checks names and numbers; `core.feeds.feed_check` checks the rest. Raises
    FeedmuxError.

    `bounded`: apply the rules for tenants that are not trusted with MongoDB's whole language.
    """
    scope = Scope(feed.source, feed.database, feed.collection)
    check_scope(scope)
    for name in ("batch_size", "max_await_time_ms"):
        if getattr(feed, name) < 0:
            raise invalid(f"feed.{name}", "must not be negative")
    if not set(EXTRA_OPTIONS).issuperset(feed.extra_options):
        raise invalid("feed.extra_options", f"must be names among {', '.join(EXTRA_OPTIONS)}")
    return FeedSpec(
        scope=scope,
        full_document=feed.full_document,
        full_document_before_change=feed.full_document_before_change,
        show_expanded_events=feed.show_expanded_events,
        match_collection_uuid_for_update_lookup=feed.match_collection_uuid_for_update_lookup,
        extra_options=tuple(sorted(set(feed.extra_options))),
        collation=feed.collation,
        comment=feed.comment,
        read_preference=feed.read_preference,
        read_concern=feed.read_concern,
        batch_size=feed.batch_size,
        max_await_time_ms=feed.max_await_time_ms,
        bounded=bounded,
    )


def start(message: feed_pb2.Start) -> Start:
    """Convert a start. Raises FeedmuxError for a token that is not BSON, or a time out of range."""
    kind = message.WhichOneof("at")
    match kind:
        case None | "latest":
            return Start()
        case "earliest":
            return Start(StartKind.EARLIEST)
        case "position":
            return Start(StartKind.POSITION, data=message.position)
        case "snapshot":
            return Start(StartKind.SNAPSHOT)
        case "resume_after" | "start_after":
            return Start(StartKind(kind), data=resume_token(getattr(message, kind), f"start.{kind}"))
        case "start_at_operation_time":
            time = message.start_at_operation_time
            if not time.seconds:
                # No event has such a time. It is the zero value of drivers, of a variable that was not set.
                raise invalid("start.start_at_operation_time", "must not be zero; `earliest` is the oldest event")
            return Start(StartKind.OPERATION_TIME, time=time.seconds << 32 | time.increment)
        case _:
            if not 0 < message.time.seconds < 2**32:
                raise invalid("start.time", "must lie after the first second of 1970, and before 2106")
            return Start(StartKind.TIME, time=message.time.seconds << 32)


def resume_token(data: bytes, field: str) -> bytes:
    """The token, or the `_id` of a copied document, whose own `_id` may have any number of fields."""
    if len(data) > TOKEN_BYTES_MAX:
        raise invalid(field, f"must not be longer than {TOKEN_BYTES_MAX} bytes")
    for count, _ in enumerate(walk(without_document(data), field), 1):
        if count > TOKEN_FIELDS_MAX:
            raise FeedmuxError(ErrorReason.POSITION_INVALID, f"{field} is not a resume token", field=field)
    return data


def heartbeat_s(request: wire.Open | wire.WatchRequest) -> float:
    if not request.HasField("heartbeat_interval"):
        return HEARTBEAT_DEFAULT_S
    interval_s = seconds(request.heartbeat_interval)
    if not 1 <= interval_s <= 60:
        raise invalid("heartbeat_interval", "must be 1 s to 60 s")
    return interval_s


def seconds(message: duration_pb2.Duration) -> float:
    return float(message.seconds + message.nanos / 1e9)


def message_bytes_max(value: int) -> int:
    if value == 0:
        return MESSAGE_BYTES_DEFAULT
    if not MESSAGE_BYTES_MIN <= value <= MESSAGE_BYTES_MAX:
        raise invalid("message_bytes_max", f"must be {MESSAGE_BYTES_MIN} to {MESSAGE_BYTES_MAX}")
    return value


def wire_format(value: int) -> str:
    try:
        return _FORMATS[value]
    except KeyError:
        raise invalid("format", "has a value that this server does not know") from None


def cluster_time(value: int) -> feed_pb2.ClusterTime:
    return feed_pb2.ClusterTime(seconds=value >> 32, increment=value & 0xFFFF_FFFF)


def timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    whole = int(seconds)
    return timestamp_pb2.Timestamp(seconds=whole, nanos=int((seconds - whole) * 1e9))


def duration(seconds: float) -> duration_pb2.Duration:
    message = duration_pb2.Duration()
    message.FromNanoseconds(int(seconds * 1e9))
    return message


def snapshot_status(status: CopyStatus | None) -> feed_pb2.SnapshotStatus | None:
    """How far a copy is; None for none."""
    if status is None:
        return None
    states = feed_pb2.SnapshotStatus
    return states(
        state=states.STATE_RUNNING if status.running else states.STATE_DONE,
        documents=status.documents,
        bytes=status.bytes,
        documents_estimated=status.documents_estimated,
        remaining=duration(status.remaining_s) if status.remaining_s is not None else None,
        read_time=cluster_time(status.read_time) if status.read_time else None,
        namespace=status.namespace,
        generation=status.generation,
    )


def definition(message: subscriptions_pb2.Subscription) -> bytes:
    """The part of a subscription that the user defines, as it is stored. Equal definitions give equal bytes."""
    kept = subscriptions_pb2.Subscription(
        feed=message.feed, on_invalidate=message.on_invalidate, on_history_lost=message.on_history_lost
    )
    if message.HasField("group"):
        kept.group.CopyFrom(message.group)
    return kept.SerializeToString(deterministic=True)


def is_definition(stored: bytes) -> bool:
    """Whether something stored is a definition; one of a newer version is. Other bytes, such as none, may be a message
    too, but one without a source."""
    try:
        return bool(subscriptions_pb2.Subscription.FromString(stored).feed.source)
    except DecodeError:
        return False


def stored_content(definition: bytes) -> subscriptions_pb2.Subscription:
    """The content of a stored definition. Earlier versions stored an empty text as a pipeline without stages."""
    content = subscriptions_pb2.Subscription.FromString(definition)
    pipeline = content.feed.pipeline
    if not (pipeline.extended_json or pipeline.bson):
        content.feed.ClearField("pipeline")
    return content


def served_content(stored: StoredSubscription) -> subscriptions_pb2.Subscription:
    """The content of a definition whose events are to be delivered. Raises STATE_UNAVAILABLE if a newer server has
    stored something that this one would leave out: it may be what keeps events from the subscriber."""
    content = stored_content(stored.definition)
    known = subscriptions_pb2.Subscription.FromString(stored.definition)
    size = known.ByteSize()
    known.DiscardUnknownFields()
    if known.ByteSize() != size or any(
        getattr(content, name) not in values.values() for name, values in POLICIES.items()
    ):
        raise FeedmuxError(
            ErrorReason.STATE_UNAVAILABLE,
            f"a newer server has stored options of subscription {stored.name!r} that this server does not know: upgrade"
            " this server, or create the subscription again at its position, without them (docs/redis.md)",
            {"redis_error": "NEWER"},
            retry_after_s=RETRY_AFTER_S,
        )
    return content


def is_group(definition: bytes) -> bool:
    """Whether a stored definition is that of a group."""
    return stored_content(definition).HasField("group")


def stored_scope(feed: feed_pb2.Feed) -> Scope:
    """The scope of a feed that was checked when it was stored."""
    return Scope(feed.source, feed.database, feed.collection)
