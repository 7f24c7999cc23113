"""Outputs of a session as bytes of `SubscribeResponse` (and `WatchResponse`, whose fields have the same numbers).

The events of a delivery are copied in unchanged: MongoDB's bytes, or texts rendered once. Only the few fields around
them, which belong to the subscriber, are encoded for each message.
"""

from collections.abc import Iterator

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.delivery.key_runs import Runs
from feedmux_server.core.delivery.taken import BSON, Delivery
from feedmux_server.core.events.batch_fields import BSON_TAG, json_text, varint
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.rpc.convert import cluster_time, duration, snapshot_status, timestamp
from feedmux_server.sessions.outputs import (
    CommittedMark,
    CopyMark,
    DegradedMark,
    DrainingMark,
    GapMark,
    HistoryAtRiskMark,
    Output,
    ProgressMark,
    RewoundMark,
    SkippedMark,
    UnacknowledgedMark,
)

FRAME_BYTES = 16 * 1024
"""Room reserved in a message for everything but the events."""

_BATCH_TAG = b"\x12"  # SubscribeResponse.batch = 2
_FRAGMENT_TAG = b"\x1a"  # SubscribeResponse.event_fragment = 3
_DATA_TAG = b"\x22"  # EventFragment.data = 4


class ResponseEncoder:
    """Encodes the outputs of one session."""

    def __init__(self, positions: PositionEncoder, wire_format: str, message_bytes_max: int) -> None:
        self._positions = positions
        self._is_bson = wire_format == BSON
        self._message_bytes_max = message_bytes_max

    @property
    def payload_max(self) -> int:
        """Bytes of events that fit into one message."""
        return self._message_bytes_max - FRAME_BYTES

    def frames(self, output: Output) -> Iterator[bytes]:
        """The messages for one output: one message, or the fragments of a large event. Empties a delivery."""
        if isinstance(output, Delivery):
            if output.wire_size > self.payload_max:
                yield from self._fragments(output)
            else:
                yield self._batch(output)
        else:
            yield self._other(output).SerializeToString()

    def _head(self, delivery: Delivery) -> wire.Batch:
        end = delivery.end
        return wire.Batch(
            first_delivery_sequence=delivery.first_sequence,
            event_count=delivery.count,
            position=self._positions.encode(end),
            resume_token=token_of(end),
            cluster_time=cluster_time(end.cluster_time),
            read_time=timestamp(delivery.read_time_s),
            snapshot=delivery.are_documents,
        )

    def _complete(self, fragment: wire.EventFragment, delivery: Delivery) -> None:
        """Add what only the last fragment has."""
        fragment.position = self._positions.encode(delivery.end)
        fragment.resume_token = token_of(delivery.end)
        fragment.cluster_time.CopyFrom(cluster_time(delivery.end.cluster_time))

    def _batch(self, delivery: Delivery) -> bytes:
        head = self._head(delivery).SerializeToString()
        parts, delivery.parts = delivery.parts, ()
        events_head = BSON_TAG + varint(delivery.wire_size) if self._is_bson else b""
        size = len(head) + len(events_head) + delivery.wire_size
        return b"".join((_BATCH_TAG, varint(size), head, events_head, *parts))

    def _fragments(self, delivery: Delivery) -> Iterator[bytes]:
        """Split one event into pieces. `take` returns an event that exceeds the message by itself."""
        data = memoryview(delivery.parts[0]) if self._is_bson else json_text(delivery.parts[0])
        room = self.payload_max
        count = -(-len(data) // room)
        for index in range(count):
            fragment = wire.EventFragment(
                delivery_sequence=delivery.first_sequence,
                index=index,
                count=count,
                snapshot=delivery.are_documents,
            )
            if index == count - 1:
                self._complete(fragment, delivery)
            # Not a field of `fragment`: protobuf's library would copy megabytes twice more.
            head, piece = fragment.SerializeToString(), data[index * room : (index + 1) * room]
            piece_head = _DATA_TAG + varint(len(piece))
            size = len(head) + len(piece_head) + len(piece)
            yield b"".join((_FRAGMENT_TAG, varint(size), head, piece_head, piece))

    def _other(self, output: Output) -> wire.SubscribeResponse:
        match output:
            case ProgressMark(place):
                return wire.SubscribeResponse(
                    progress=wire.Progress(
                        position=self._positions.encode(place),
                        resume_token=token_of(place),
                        cluster_time=cluster_time(place.cluster_time),
                    )
                )
            case CommittedMark(sequence, position):
                return wire.SubscribeResponse(committed=wire.Committed(delivery_sequence=sequence, position=position))
            case DrainingMark(deadline_s, place):
                draining = wire.Notice.Draining(deadline=duration(deadline_s), position=self._positions.encode(place))
                return wire.SubscribeResponse(notice=wire.Notice(draining=draining))
            case DegradedMark(dependency, unavailable):
                degraded = wire.Notice.Degraded(dependency=dependency, unavailable=unavailable)
                return wire.SubscribeResponse(notice=wire.Notice(degraded=degraded))
            case RewoundMark(begins, reached):
                rewound = wire.Notice.Rewound(to=cluster_time(reached))
                getattr(rewound, "from").CopyFrom(cluster_time(begins.cluster_time))
                return wire.SubscribeResponse(notice=wire.Notice(rewound=rewound))
            case SkippedMark(acked, begins):
                skipped = wire.Notice.Skipped(
                    to=cluster_time(begins.cluster_time),
                    from_position=self._positions.encode(acked),
                    to_position=self._positions.encode(begins),
                )
                getattr(skipped, "from").CopyFrom(cluster_time(acked.cluster_time))
                return wire.SubscribeResponse(notice=wire.Notice(skipped=skipped))
            case GapMark(begins, ends, reason):
                gap = wire.Notice.Gap(to=cluster_time(ends.cluster_time), reason=reason)
                getattr(gap, "from").CopyFrom(cluster_time(begins.cluster_time))
                return wire.SubscribeResponse(notice=wire.Notice(gap=gap))
            case HistoryAtRiskMark(remaining_s):
                at_risk = wire.Notice.HistoryAtRisk(remaining=duration(remaining_s))
                return wire.SubscribeResponse(notice=wire.Notice(history_at_risk=at_risk))
            case UnacknowledgedMark(events):
                unacknowledged = wire.Notice.Unacknowledged(events=events)
                return wire.SubscribeResponse(notice=wire.Notice(unacknowledged=unacknowledged))
            case CopyMark(status):
                return wire.SubscribeResponse(notice=wire.Notice(snapshot=snapshot_status(status)))
        raise TypeError(f"no frame for {type(output).__name__}")

    def opened(self, message: wire.Opened) -> bytes:
        return wire.SubscribeResponse(opened=message).SerializeToString()


class MemberEncoder(ResponseEncoder):
    """The same for a member of a group, whose deliveries have runs and no position."""

    def _head(self, delivery: Delivery) -> wire.Batch:
        assert isinstance(delivery, Runs), "the deliveries of a group have runs"
        return wire.Batch(
            first_delivery_sequence=delivery.first_sequence,
            event_count=delivery.count,
            read_time=timestamp(delivery.read_time_s),
            runs=delivery.runs,
            attempts=delivery.attempts,
        )

    def _complete(self, fragment: wire.EventFragment, delivery: Delivery) -> None:
        assert isinstance(delivery, Runs), "the deliveries of a group have runs"
        if delivery.attempts:
            fragment.attempts = delivery.attempts[0]


def token_of(place: ResumeToken) -> bytes:
    """MongoDB's token of a position. Empty for a long one: the server has a summary of it, and the event itself has the
    token. Empty also for a position beside an event that may be split, for which MongoDB has none."""
    return place.raw if place.is_of_mongodb else b""
