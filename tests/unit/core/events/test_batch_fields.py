"""Encode the events of a batch as protobuf does."""

from feedmux.v1.change_feed_pb2 import Batch
from feedmux_server.core.events.batch_fields import BSON_TAG, json_field, json_text, varint
from tests.tables import over

SIZES = (1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152)


@over("size", SIZES)
def test_fields_are_those_of_protobuf(size: int) -> None:
    data = b"x" * size
    assert BSON_TAG + varint(size) + data == Batch(bson=data).SerializeToString()
    assert json_field(data) + json_field(b"y") == Batch(json=[data.decode(), "y"]).SerializeToString()


@over("size", SIZES)
def test_a_text_comes_out_as_it_went_in(size: int) -> None:
    assert json_text(json_field(b"x" * size)) == b"x" * size
