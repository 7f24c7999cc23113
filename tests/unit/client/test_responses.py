"""Reading the wire: no copy, fragments, and messages that a server must not send."""

import pytest
from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp

from feedmux.batches import BsonBatch
from feedmux.errors import ProtocolError
from feedmux.feeds import SnapshotStatus
from feedmux.notices import (
    Degraded,
    Gap,
    HistoryAtRisk,
    Rewound,
    SnapshotComplete,
    SnapshotProgress,
    Unacknowledged,
)
from feedmux.responses import Delivery, Reader
from feedmux.v1 import change_feed_pb2 as pb
from feedmux.v1 import feed_pb2
from tests.tables import over
from tests.unit.client.scripted_server import batch, event, fragments, opened, progress, token


def reader(json: bool = False) -> Reader:
    return Reader(json, CodecOptions())


def delivered(message: bytes) -> BsonBatch:
    delivery = reader().read(message)
    assert isinstance(delivery, Delivery)
    assert isinstance(delivery.batch, BsonBatch)
    return delivery.batch


@over("pad", [0, 5000])
def test_a_batch_small_and_large(pad: int) -> None:
    got = delivered(batch(7, [1, 2, 3], pad).SerializeToString())
    assert [document["n"] for document in got.documents] == [1, 2, 3]
    assert got.position == b"P3"
    assert got.resume_token == token(3)
    assert bytes(got.raw) == b"".join(event(number, pad) for number in (1, 2, 3))
    assert [each.raw for each in got] == [event(number, pad) for number in (1, 2, 3)]
    assert [each.resume_token for each in got] == [token(number) for number in (1, 2, 3)]


def test_a_large_batch_is_a_view_on_the_message_wherever_its_bytes_stand() -> None:
    message = batch(1, [1], 9000)
    head = pb.Batch()
    head.CopyFrom(message.batch)
    head.ClearField("bson")
    data = message.batch.bson
    field = b"\x7a" + _varint(len(data)) + data
    unknown = b"\xf8\x07\x05"  # Field 127, a varint.
    for body in (head.SerializeToString() + field, field + head.SerializeToString(), unknown + field + unknown):
        whole = b"\x12" + _varint(len(body)) + body
        if body.startswith(unknown):
            with pytest.raises(ProtocolError):  # Without event_count.
                reader().read(whole)
            continue
        got = delivered(whole)
        assert got.raw.obj is whole
        assert got.documents[0]["n"] == 1


def test_bytes_given_twice_follow_protobuf_s_rule() -> None:
    message = batch(1, [1], 9000)
    doubled = message.batch.SerializeToString() + b"\x7a" + _varint(len(event(2, 1))) + event(2, 1)
    got = delivered(b"\x12" + _varint(len(doubled)) + doubled)
    assert got.documents[0]["n"] == 2


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


def test_fragments_are_joined() -> None:
    read = reader()
    parts = [part.SerializeToString() for part in fragments(4, 9, 10_000, 3)]
    assert read.read(parts[0]) is None
    assert read.read(parts[1]) is None
    delivery = read.read(parts[2])
    assert isinstance(delivery, Delivery)
    assert delivery.first_sequence == 4
    assert delivery.batch.documents[0]["n"] == 9
    assert delivery.batch.position == b"P9"


@over("pad", [0, 5000])
def test_a_batch_says_whether_its_events_are_documents_of_a_copy(pad: int) -> None:
    message = batch(1, [1, 2, 3], pad)
    assert not delivered(message.SerializeToString()).snapshot
    message.batch.snapshot = True
    got = delivered(message.SerializeToString())
    assert [each.snapshot for each in got] == [True, True, True]
    assert got.part(1, 2).snapshot
    assert got.twin().snapshot
    parts = fragments(4, 9, 1000, 2)
    for part in parts:
        part.event_fragment.snapshot = True
    read = reader()
    read.read(parts[0].SerializeToString())
    joined = read.read(parts[1].SerializeToString())
    assert isinstance(joined, Delivery)
    assert joined.batch.snapshot


def test_an_unfinished_event_is_forgotten_with_its_stream() -> None:
    read = reader()
    parts = [part.SerializeToString() for part in fragments(1, 9, 1000, 2)]
    read.read(parts[0])
    read.reset()
    assert read.read(parts[0]) is None
    assert read.read(parts[1]) is not None


@over("second", [0, 2])
def test_fragments_out_of_order(second: int) -> None:
    read = reader()
    parts = [part.SerializeToString() for part in fragments(1, 9, 1000, 3)]
    read.read(parts[0])
    with pytest.raises(ProtocolError):
        read.read(parts[second])


def test_something_between_fragments() -> None:
    read = reader()
    read.read(fragments(1, 9, 1000, 3)[0].SerializeToString())
    with pytest.raises(ProtocolError):
        read.read(progress(9).SerializeToString())


@over(
    "message",
    [
        b"\x12\xff",
        b"\x12\x05rubbish",
        pb.SubscribeResponse(batch=pb.Batch(first_delivery_sequence=1)).SerializeToString(),
        pb.SubscribeResponse(
            batch=pb.Batch(first_delivery_sequence=1, event_count=2, bson=b"\x05\0\0\0\0")
        ).SerializeToString(),
        pb.SubscribeResponse(
            batch=pb.Batch(first_delivery_sequence=1, event_count=1, bson=b"\xff\0\0\0\0")
        ).SerializeToString(),
    ],
)
def test_what_a_server_must_not_send(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        reader().read(message)


def test_how_far_a_copy_is() -> None:
    status = feed_pb2.SnapshotStatus(
        state="STATE_RUNNING",
        documents=300,
        bytes=9,
        documents_estimated=1000,
        read_time=feed_pb2.ClusterTime(seconds=5, increment=6),
        namespace="shop.orders",
    )
    status.remaining.FromMilliseconds(3500)
    said = reader().read(pb.SubscribeResponse(notice=pb.Notice(snapshot=status)).SerializeToString())
    assert said == SnapshotProgress(SnapshotStatus(True, 300, 9, 1000, 3.5, Timestamp(5, 6), "shop.orders"))
    assert isinstance(said, SnapshotProgress)
    assert (said.status.fraction, said.status.documents_per_s) == (0.3, 200.0)
    unknown = SnapshotStatus(True, 300)
    assert (unknown.fraction, unknown.documents_per_s) == (None, None)
    assert SnapshotStatus(True, 1001, 0, 1000).fraction == 1.0


def test_notices_and_unknown_kinds() -> None:
    time = feed_pb2.ClusterTime(seconds=5, increment=6)
    made = [
        (pb.Notice(rewound=pb.Notice.Rewound(**{"from": time, "to": time})), Rewound((5, 6), (5, 6))),
        (pb.Notice(gap=pb.Notice.Gap(**{"from": time}, to=time, reason="r")), Gap((5, 6), (5, 6), "r")),
        (pb.Notice(degraded=pb.Notice.Degraded(dependency="state", unavailable=True)), Degraded("state", True)),
        (pb.Notice(history_at_risk=pb.Notice.HistoryAtRisk()), HistoryAtRisk(0.0)),
        (pb.Notice(unacknowledged=pb.Notice.Unacknowledged(events=7)), Unacknowledged(7)),
        (pb.Notice(snapshot=feed_pb2.SnapshotStatus(state="STATE_DONE", documents=5)), SnapshotComplete(5)),
        (pb.Notice(snapshot=feed_pb2.SnapshotStatus(documents=5)), None),
        (pb.Notice(), None),
    ]
    for message, expected in made:
        assert reader().read(pb.SubscribeResponse(notice=message).SerializeToString()) == expected
    assert reader().read(b"\xfa\x07\x01x") is None
    assert reader().read(opened(heartbeat_s=3).SerializeToString()) is not None
