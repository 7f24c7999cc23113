"""Reading the wire: no copy, fragments, and messages that a server must not send."""

import pytest
from bson.codec_options import CodecOptions
from bson.timestamp import Timestamp

from feedmux.batches import BsonBatch
from feedmux.errors import ProtocolError
from feedmux.feeds import SnapshotStatus
from feedmux.notices import (
    SnapshotProgress,
)
from feedmux.responses import Delivery, Reader
from feedmux.v1 import change_feed_pb2 as pb
from feedmux.v1 import feed_pb2
from tests.unit.client.scripted_server import batch, event


def reader(json: bool = False) -> Reader:
    return Reader(json, CodecOptions())


def delivered(message: bytes) -> BsonBatch:
    delivery = reader().read(message)
    assert isinstance(delivery, Delivery)
    assert isinstance(delivery.batch, BsonBatch)
    return delivery.batch


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


def test_a_batch_without_events_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError):
        reader().read(pb.SubscribeResponse(batch=pb.Batch(first_delivery_sequence=1)).SerializeToString())


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
