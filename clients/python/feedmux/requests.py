"""Outgoing messages: protobuf made from the client's own values, and resources read back from protobuf.

Only this module and `responses` use generated messages.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import bson
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from google.protobuf import timestamp_pb2

from feedmux.feeds import (
    AfterDeadLetter,
    CollectionImages,
    Explanation,
    Feed,
    Format,
    Group,
    OnHistoryLost,
    OnInvalidate,
    Refusal,
    SnapshotStatus,
    Start,
    SubscriptionInfo,
    Withheld,
)
from feedmux.options import SESSION_CODEC
from feedmux.positions import FeedPosition
from feedmux.settlements import Settlement
from feedmux.v1 import change_feed_pb2, feed_pb2, subscriptions_pb2
from feedmux.window import Grant

T = TypeVar("T")
D = TypeVar("D")

_PLAIN: Final[Mapping[str, Any]] = {
    each.name: each.default
    for each in fields(Feed)
    if each.name not in ("source", "pipeline", "collation", "comment", "extra_options")
}
"""The fields of a feed that its message has as they are, with their defaults."""
_FORMATS: Final[Mapping[Format, feed_pb2.Format]] = {
    "bson": feed_pb2.FORMAT_BSON,
    "extended_json_relaxed": feed_pb2.FORMAT_EXTENDED_JSON_RELAXED,
    "extended_json_canonical": feed_pb2.FORMAT_EXTENDED_JSON_CANONICAL,
}
_ON_INVALIDATE: Final[Mapping[OnInvalidate, feed_pb2.OnInvalidate]] = {
    "stop": feed_pb2.ON_INVALIDATE_STOP,
    "continue": feed_pb2.ON_INVALIDATE_CONTINUE,
}
_ON_HISTORY_LOST: Final[Mapping[OnHistoryLost, feed_pb2.OnHistoryLost]] = {
    "fail": feed_pb2.ON_HISTORY_LOST_FAIL,
    "earliest": feed_pb2.ON_HISTORY_LOST_EARLIEST,
    "snapshot": feed_pb2.ON_HISTORY_LOST_SNAPSHOT,
}
_AFTER_DEAD_LETTER: Final[Mapping[AfterDeadLetter, subscriptions_pb2.AfterDeadLetter]] = {
    "skip": subscriptions_pb2.AFTER_DEAD_LETTER_SKIP,
    "quarantine": subscriptions_pb2.AFTER_DEAD_LETTER_QUARANTINE,
}
_GROUP_TIME_MAX_S: Final = 315_576_000_000
"""The longest duration of protobuf. The server has the limits of each time."""
CLOSE: Final = change_feed_pb2.SubscribeRequest(close=change_feed_pb2.Close()).SerializeToString()


def feed_message(feed: Feed, default_source: str) -> feed_pb2.Feed:
    """Return a feed's message.

    Raises TypeError for a pipeline that is no list, ValueError for a name that is empty, and
    bson.errors.InvalidDocument for values that BSON cannot represent.
    """
    for name in ("database", "collection"):
        # An unset variable would otherwise widen the feed to everybody's events.
        if getattr(feed, name) == "":
            raise ValueError(f"a feed's {name} is empty; leave it out, or write None, for all of them")
    message = feed_pb2.Feed(
        source=feed.source or default_source,
        extra_options=_names(feed.extra_options),
        **{name: getattr(feed, name) for name in _PLAIN},
    )
    if isinstance(feed.pipeline, str):
        message.pipeline.extended_json = feed.pipeline
    elif feed.pipeline is not None and (
        not isinstance(feed.pipeline, Sequence) or isinstance(feed.pipeline, bytes | bytearray | memoryview)
    ):
        # A generator would be empty when the feed is used a second time, and everybody's events would come.
        raise TypeError(f"a feed's pipeline is a list of stages or Extended JSON, not {type(feed.pipeline).__name__}")
    elif feed.pipeline:
        message.pipeline.bson = bson.encode({"pipeline": list(feed.pipeline)})
    if feed.collation is not None:
        message.collation = bson.encode(feed.collation)
    if feed.comment is not None:
        message.comment = bson.encode({"comment": feed.comment})
    return message


def _names(given: Sequence[str]) -> Sequence[str]:
    # The names of a mapping would be options that are true, whatever its values.
    if isinstance(given, str | Mapping):
        raise TypeError(f"a feed's extra_options is a list of names, not {type(given).__name__}")
    return given


def route_of(message: feed_pb2.Feed) -> str:
    """Return a feed's `x-feedmux-route` metadata: the value that the server later sends as `Opened.routing_key`."""
    namespace = f"{message.database}.{message.collection}" if message.collection else message.database or "*"
    return hashlib.sha256(f"{message.source}/{namespace}".encode()).hexdigest()[:16]


def feed_value(message: feed_pb2.Feed) -> Feed:
    """Return the feed of a message."""
    pipeline: list[Mapping[str, Any]] | str | None = None
    match message.pipeline.WhichOneof("notation"):
        case "bson":
            pipeline = _stages(message.pipeline.bson)
        case "extended_json":
            pipeline = message.pipeline.extended_json
    return Feed(
        source=message.source,
        pipeline=pipeline,
        collation=bson.decode(message.collation) if message.collation else None,
        comment=bson.decode(message.comment, SESSION_CODEC).get("comment") if message.comment else None,
        extra_options=tuple(message.extra_options),
        **{name: getattr(message, name) or default for name, default in _PLAIN.items()},
    )


def _stages(stored: bytes) -> list[Mapping[str, Any]]:
    """Return stages that can be sent again as they are stored. Where a dict would lose something (a name that appears
    twice, the order of a DBRef, a deprecated type), they are RawBSONDocuments."""
    decoded: Mapping[str, Any] = bson.decode(stored, SESSION_CODEC)
    if bson.encode(decoded) != stored:
        decoded = bson.decode(stored, SESSION_CODEC.with_options(document_class=RawBSONDocument))
    stages: list[Mapping[str, Any]] = decoded["pipeline"]
    return stages


def start_message(start: Start) -> feed_pb2.Start:
    """Return a start's message."""
    match start.kind:
        case "position":
            return feed_pb2.Start(position=start.token)
        case "resume_after":
            return feed_pb2.Start(resume_after=start.token)
        case "start_after":
            return feed_pb2.Start(start_after=start.token)
        case "operation_time":
            seconds, increment = start.time
            return feed_pb2.Start(start_at_operation_time=feed_pb2.ClusterTime(seconds=seconds, increment=increment))
        case "time":
            return feed_pb2.Start(time=timestamp_pb2.Timestamp(seconds=start.time[0]))
        case "earliest":
            return feed_pb2.Start(earliest=feed_pb2.Earliest())
        case "latest":
            return feed_pb2.Start(latest=feed_pb2.Latest())
        case "snapshot":
            return feed_pb2.Start(snapshot=feed_pb2.Snapshot())


def subscription_message(
    name: str,
    feed: feed_pb2.Feed | None,
    on_invalidate: OnInvalidate | None,
    on_history_lost: OnHistoryLost | None,
) -> subscriptions_pb2.Subscription:
    """Return the message of a subscription's definition. Raises ValueError for an unknown policy."""
    message = subscriptions_pb2.Subscription(name=name, feed=feed)
    if on_invalidate is not None:
        if on_invalidate not in _ON_INVALIDATE:
            raise ValueError(f"on_invalidate is one of {', '.join(_ON_INVALIDATE)}")
        message.on_invalidate = _ON_INVALIDATE[on_invalidate]
    if on_history_lost is not None:
        if on_history_lost not in _ON_HISTORY_LOST:
            raise ValueError(f"on_history_lost is one of {', '.join(_ON_HISTORY_LOST)}")
        message.on_history_lost = _ON_HISTORY_LOST[on_history_lost]
    return message


def group_message(group: Group) -> subscriptions_pb2.Group:
    """Return the message of a group. Raises ValueError, TypeError."""
    if not isinstance(group, Group):
        raise TypeError(f"group is a feedmux.Group, not {type(group).__name__}")
    message = subscriptions_pb2.Group(attempts_max=group.attempts_max)
    for name in ("reconnect_time", "retry_first", "retry_most"):
        seconds: float | None = getattr(group, f"{name}_s")
        if seconds is not None:
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise TypeError(f"{name}_s is a number of seconds, not {type(seconds).__name__}")
            if not 0 <= seconds <= _GROUP_TIME_MAX_S:
                raise ValueError(f"{name}_s is 0 to {_GROUP_TIME_MAX_S:,}")
            getattr(message, name).FromNanoseconds(round(seconds * 1e9))
    if group.after_dead_letter is not None:
        if group.after_dead_letter not in _AFTER_DEAD_LETTER:
            raise ValueError(f"after_dead_letter is one of {', '.join(_AFTER_DEAD_LETTER)}")
        message.after_dead_letter = _AFTER_DEAD_LETTER[group.after_dead_letter]
    return message


def _group_value(message: subscriptions_pb2.Group) -> Group:
    times = {
        f"{name}_s": getattr(message, name).ToNanoseconds() / 1e9
        for name in ("reconnect_time", "retry_first", "retry_most")
        if message.HasField(name)
    }
    after = _named(_AFTER_DEAD_LETTER, message.after_dead_letter, None)
    return Group(**times, attempts_max=message.attempts_max, after_dead_letter=after)


def _named(names: Mapping[T, Any], value: int, default: D) -> T | D:
    return next((name for name, each in names.items() if each == value), default)


def subscription_value(message: subscriptions_pb2.Subscription) -> SubscriptionInfo:
    """Return the subscription of a message. Policies that this client does not know become the default."""
    return SubscriptionInfo(
        name=message.name,
        feed=feed_value(message.feed),
        on_invalidate=_named(_ON_INVALIDATE, message.on_invalidate, "stop"),
        on_history_lost=_named(_ON_HISTORY_LOST, message.on_history_lost, "fail"),
        position=message.position,
        cluster_time=timestamp_value(message.cluster_time) if message.HasField("cluster_time") else None,
        create_time=time_value(message.create_time) if message.HasField("create_time") else None,
        update_time=time_value(message.update_time) if message.HasField("update_time") else None,
        etag=message.etag,
        active=message.active,
        owner=message.owner,
        epoch=message.epoch,
        expire_time=time_value(message.expire_time) if message.HasField("expire_time") else None,
        routing_key=message.routing_key,
        snapshot=snapshot_value(message.snapshot) if message.HasField("snapshot") else None,
        session_state=message.session_state,
        unacked_events=message.unacked_events,
        group=_group_value(message.group) if message.HasField("group") else None,
    )


def snapshot_value(message: feed_pb2.SnapshotStatus) -> SnapshotStatus:
    """Return how far a copy is."""
    left = message.remaining
    return SnapshotStatus(
        running=message.state == feed_pb2.SnapshotStatus.STATE_RUNNING,
        documents=message.documents,
        bytes=message.bytes,
        documents_estimated=message.documents_estimated,
        remaining_s=left.seconds + left.nanos / 1e9 if message.HasField("remaining") else None,
        read_time=timestamp_value(message.read_time) if message.HasField("read_time") else None,
        namespace=message.namespace,
        generation=message.generation,
    )


def timestamp_value(message: feed_pb2.ClusterTime) -> Timestamp:
    """Return a cluster time as bson's Timestamp."""
    return Timestamp(message.seconds, message.increment)


def time_value(message: timestamp_pb2.Timestamp) -> datetime:
    """Return a wall-clock time in UTC."""
    return message.ToDatetime(tzinfo=UTC)


def format_message(format_: Format) -> feed_pb2.Format:
    """Return a format's message value. Raises ValueError for an unknown format."""
    if format_ not in _FORMATS:
        raise ValueError(f"format is one of {', '.join(_FORMATS)}")
    return _FORMATS[format_]


def last_acked_message(feed_position: FeedPosition, epoch: int) -> change_feed_pb2.LastAcked:
    """Return the message of the last acked position: feedmux's position if known, else the event's token."""
    if feed_position.position:
        return change_feed_pb2.LastAcked(position=feed_position.position, epoch=epoch)
    return change_feed_pb2.LastAcked(resume_token=feed_position.token, epoch=epoch)


def open_bytes(message: change_feed_pb2.Open) -> bytes:
    """Return the bytes of the first message of a stream."""
    return change_feed_pb2.SubscribeRequest(open=message).SerializeToString()


def credit_bytes(grant: Grant) -> bytes:
    """Return the bytes of a message that grants more credit."""
    return change_feed_pb2.SubscribeRequest(
        credit=change_feed_pb2.Credit(events=grant.events, bytes=grant.size_bytes)
    ).SerializeToString()


def ack_bytes(sequence: int) -> bytes:
    """Return the bytes of an ack of everything up to a delivery sequence."""
    return change_feed_pb2.SubscribeRequest(ack=change_feed_pb2.Ack(delivery_sequence=sequence)).SerializeToString()


def settle_bytes(settlement: Settlement) -> bytes:
    """Return the bytes of a message that reports what became of events of a group."""
    message = change_feed_pb2.Settle(
        done=[change_feed_pb2.Settle.Range(first=first, last=last) for first, last in settlement.done]
    )
    for sequence, outcome in settlement.failed:
        failed = message.failed.add(delivery_sequence=sequence, reason=outcome.reason, reject=outcome.reject)
        if outcome.retry_after_s is not None:
            failed.retry_after.FromNanoseconds(int(outcome.retry_after_s * 1e9))
    return change_feed_pb2.SubscribeRequest(settle=message).SerializeToString()


def explanation_value(message: change_feed_pb2.ExplainResponse) -> Explanation:
    """Return the explanation of a message."""
    refusal, headroom = message.refusal, message.oplog_headroom
    return Explanation(
        Refusal(refusal.status, refusal.reason, refusal.message) if message.HasField("refusal") else None,
        message.pipeline,
        message.stream_key,
        message.stream_open,
        tuple(CollectionImages(one.database, one.collection, one.enabled, one.for_grants) for one in message.images),
        headroom.seconds + headroom.nanos / 1e9 if message.HasField("oplog_headroom") else None,
        tuple(Withheld(one.what, one.why) for one in message.withheld),
        message.may_be_view,
        message.scope_missing,
        message.documents_estimated,
    )
