"""Incoming messages: turns the bytes of a SubscribeResponse into the client's own values.

A batch's events are never copied: in large messages this module finds the few fields around them by walking the wire
format, and makes the `BsonBatch` a view of the message. All other and unusual messages go through protobuf. Unknown
fields and message kinds are ignored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bson.codec_options import CodecOptions
from google.protobuf.message import DecodeError

from feedmux.batches import Batch, BsonBatch, JsonBatch
from feedmux.errors import ProtocolError
from feedmux.feeds import SnapshotStatus
from feedmux.notices import (
    Degraded,
    Draining,
    Gap,
    HistoryAtRisk,
    Notice,
    Rewound,
    Skipped,
    SnapshotComplete,
    SnapshotProgress,
    Unacknowledged,
)
from feedmux.positions import FeedPosition
from feedmux.requests import snapshot_value
from feedmux.v1 import change_feed_pb2, feed_pb2

_BATCH_TAG = 0x12
_BSON_TAG = 0x7A
_WALK_FROM_BYTES = 4096
"""Below this size, protobuf's copying costs less than walking the message in Python."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The stream is open. Intervals are in seconds; a limit of 0 is unknown."""

    epoch: int
    feed_position: FeedPosition
    at_last_acked: bool
    heartbeat_s: float
    credit_events_max: int
    credit_bytes_max: int
    unacked_events_max: int
    message_bytes_max: int
    routing_key: str
    copying: SnapshotStatus | None = None
    """Set if the session begins within a copy of existing documents."""
    members: int = 0
    """The connected members of the group that the session has joined; 0: it has joined none."""
    seek_epoch: int = 0
    """In a group: what sessions up to this epoch have delivered is void."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Events, and the sequence of the first event. In a group: how many events each run has, and how often each event
    has been delivered (empty: once)."""

    first_sequence: int
    batch: Batch
    runs: Sequence[int] = ()
    attempts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything at or before `feed_position` has been delivered."""

    feed_position: FeedPosition


@dataclass(frozen=True, slots=True)
class Committed:
    """Acks up to `sequence` are durable; `position` is stored."""

    sequence: int
    position: bytes


Message = Delivery | Progress | Committed | Notice
Response = Opened | Message


class Reader:
    """Reads the messages of one session: knows its format and codec options, and joins fragments."""

    def __init__(self, json: bool, options: CodecOptions[Any]) -> None:
        self._json = json
        self._options = options
        self._fragments: list[bytes] = []
        self._fragment_of = (0, 0)

    def reset(self) -> None:
        """Discard unfinished fragments, for a new stream."""
        self._fragments = []

    def read(self, message: bytes) -> Response | None:
        """Read one message. None for an unknown kind, or a part of an unfinished event. Raises ProtocolError."""
        response = self._parse(message)
        if isinstance(response, change_feed_pb2.EventFragment):
            return self._join(response)
        if self._fragments and response is not None:
            raise ProtocolError("a message came between the fragments of an event")
        return response

    def _parse(self, message: bytes) -> Response | change_feed_pb2.EventFragment | None:
        try:
            if len(message) >= _WALK_FROM_BYTES and message[0] == _BATCH_TAG:
                parts = _walk_batch(message)
                if parts is not None:
                    head, events = parts
                    batch = change_feed_pb2.Batch.FromString(head)
                    return self._delivery(batch, events)
            response = change_feed_pb2.SubscribeResponse.FromString(message)
        except (DecodeError, IndexError) as error:
            raise ProtocolError("a message cannot be decoded") from error
        match response.WhichOneof("message"):
            case "batch":
                return self._delivery(response.batch, memoryview(response.batch.bson))
            case "progress":
                return Progress(_feed_position(response.progress))
            case "committed":
                return Committed(response.committed.delivery_sequence, response.committed.position)
            case "event_fragment":
                return response.event_fragment
            case "opened":
                return _opened(response.opened)
            case "notice":
                return _notice(response.notice)
        return None

    def _delivery(self, batch: change_feed_pb2.Batch, events: memoryview) -> Delivery:
        feed_position = _feed_position(batch)
        read_ns = batch.read_time.seconds * 1_000_000_000 + batch.read_time.nanos
        count = batch.event_count
        if count < 1:
            raise ProtocolError("a batch without events")
        made: Batch
        if self._json:
            if len(batch.json) != count:
                raise ProtocolError(f"a batch of {count} events holds {len(batch.json)} texts")
            made = JsonBatch(tuple(batch.json), feed_position, read_ns, self._options)
        else:
            made = BsonBatch(events, count, feed_position, read_ns, self._options)
        made.snapshot = batch.snapshot
        return Delivery(batch.first_delivery_sequence, made, batch.runs, batch.attempts)

    def _join(self, part: change_feed_pb2.EventFragment) -> Delivery | None:
        if (
            part.index != len(self._fragments)
            or part.count < 1
            or (part.index and self._fragment_of != (part.delivery_sequence, part.count))
        ):
            raise ProtocolError("fragments of an event out of order")
        self._fragment_of = (part.delivery_sequence, part.count)
        self._fragments.append(part.data)
        if len(self._fragments) < part.count:
            return None
        data = b"".join(self._fragments)
        self._fragments = []
        made: Batch
        if self._json:
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                raise ProtocolError("a fragmented event is not UTF-8") from error
            made = JsonBatch((text,), _feed_position(part), 0, self._options)
        else:
            made = BsonBatch(memoryview(data), 1, _feed_position(part), 0, self._options)
        made.snapshot = part.snapshot
        return Delivery(part.delivery_sequence, made, (1,), (part.attempts,))


def _feed_position(
    message: (
        change_feed_pb2.Opened | change_feed_pb2.Batch | change_feed_pb2.EventFragment | change_feed_pb2.Progress
    ),
) -> FeedPosition:
    time = message.cluster_time
    return FeedPosition(message.position, message.resume_token, (time.seconds, time.increment))


def _opened(opened: change_feed_pb2.Opened) -> Opened:
    limits = opened.limits
    return Opened(
        epoch=opened.epoch,
        feed_position=_feed_position(opened),
        at_last_acked=opened.at_last_acked,
        heartbeat_s=opened.heartbeat_interval.seconds + opened.heartbeat_interval.nanos / 1e9,
        credit_events_max=limits.credit_events_max,
        credit_bytes_max=limits.credit_bytes_max,
        unacked_events_max=limits.unacked_events_max,
        message_bytes_max=limits.message_bytes_max,
        routing_key=opened.routing_key,
        copying=snapshot_value(opened.snapshot) if opened.HasField("snapshot") else None,
        members=max(1, opened.group.members) if opened.HasField("group") else 0,
        seek_epoch=opened.group.seek_epoch,
    )


def _time(time: feed_pb2.ClusterTime) -> tuple[int, int]:
    return time.seconds, time.increment


_NOTICES: dict[str, Callable[[change_feed_pb2.Notice], Notice]] = {
    "draining": lambda n: Draining(n.draining.deadline.seconds + n.draining.deadline.nanos / 1e9, n.draining.position),
    "rewound": lambda n: Rewound(_time(getattr(n.rewound, "from")), _time(n.rewound.to)),
    "skipped": lambda n: Skipped(
        _time(getattr(n.skipped, "from")), _time(n.skipped.to), n.skipped.from_position, n.skipped.to_position
    ),
    "history_at_risk": lambda n: HistoryAtRisk(
        n.history_at_risk.remaining.seconds + n.history_at_risk.remaining.nanos / 1e9
    ),
    "gap": lambda n: Gap(_time(getattr(n.gap, "from")), _time(n.gap.to), n.gap.reason),
    "degraded": lambda n: Degraded(n.degraded.dependency, n.degraded.unavailable),
    "unacknowledged": lambda n: Unacknowledged(n.unacknowledged.events),
}


def _notice(notice: change_feed_pb2.Notice) -> Notice | None:
    status = notice.snapshot
    match status.state:
        case feed_pb2.SnapshotStatus.STATE_RUNNING:
            return SnapshotProgress(snapshot_value(status))
        case feed_pb2.SnapshotStatus.STATE_DONE:
            return SnapshotComplete(status.documents, status.generation)
    make = _NOTICES.get(notice.WhichOneof("kind") or "")
    return make(notice) if make else None


def _walk_batch(message: bytes) -> tuple[bytes, memoryview] | None:
    """Read a SubscribeResponse that holds only one Batch: return the batch without `bson`, and a view of `bson`.

    None for any other message, or if `bson` does not occur exactly once: protobuf has rules for those cases.
    Raises IndexError for a truncated message.
    """
    size, at = _varint(message, 1)
    end = at + size
    if end != len(message):
        return None
    begin = at
    found: tuple[int, int, int] | None = None
    while at < end:
        field_at = at
        tag, at = _varint(message, at)
        if tag & 7 == 2:
            size, at = _varint(message, at)
            if tag == _BSON_TAG:
                if found:
                    return None
                found = (field_at, at, at + size)
            at += size
        elif tag & 7 == 0:
            _, at = _varint(message, at)
        else:
            return None
    if found is None or at != end:
        return None
    field_at, first, last = found
    return message[begin:field_at] + message[last:end], memoryview(message)[first:last]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError
