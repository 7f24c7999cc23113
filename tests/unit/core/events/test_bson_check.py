import struct

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.bson_check import check_bson, walk
from tests.tables import over
from tests.unit.core.events.test_bson_walk import EVERY_TYPE


def element(kind: int, content: bytes, name: bytes = b"a") -> bytes:
    body = bytes((kind,)) + name + b"\0" + content + b"\0"
    return (len(body) + 4).to_bytes(4, "little") + body


def fault(document: bytes) -> FeedmuxError:
    with pytest.raises(FeedmuxError) as caught:
        check_bson(document, "feed.collation")
    assert caught.value.reason is ErrorReason.BSON_INVALID
    return caught.value


def nested(depth: int) -> bytes:
    document = b"\x05\0\0\0\0"
    for _ in range(depth - 1):
        document = element(3, document)
    return document


def test_every_type_passes() -> None:
    check_bson(bson.encode(EVERY_TYPE), "x")
    check_bson(element(0x06, b"") + b"", "x")
    check_bson(element(0x0E, b"\2\0\0\0a\0"), "x")
    check_bson(element(0x0C, b"\2\0\0\0a\0" + bytes(12)), "x")


def test_elements_come_with_their_paths() -> None:
    elements = list(walk(bson.encode({"a": {"b": [True, {"c": 1}]}, "d": 2}), ""))
    assert [(".".join(e.path), e.depth) for e in elements] == [
        ("a", 1), ("a.b", 2), ("a.b.0", 3), ("a.b.1", 3), ("a.b.1.c", 4), ("d", 1),
    ]  # fmt: skip


@over(
    "document",
    [
        b"",
        b"\x05\0\0\0",
        b"\x04\0\0\0\0",
        b"\x05\0\0\0\1",
        b"\x06\0\0\0\0",
        b"\x05\0\0\0\0\0",
        b"\xff\xff\xff\xff\0",
        *(element(0x02, each) for each in (b"\x02\0\0\0\xff\0", b"\x02\0\0\0ab", b"\0\0\0\0")),
        *(element(0x02, b"\xff\xff\xff" + each) for each in (b"\x7f\0", b"\xff\0")),
        element(0x02, b"\x04\0\0\0\xed\xa0\x80\0"),
        element(0x03, b"\x06\0\0\0\0"),
        element(0x05, b"\x09\0\0\0\0"),
        element(0x05, b"\x04\0\0\0\x02\x01\0\0\0"),
        element(0x05, b"\x02\0\0\0\x02ab"),
        element(0x08, b"\x02"),
        element(0x0B, b"a"),
        element(0x0F, b"\x05\0\0\0\x01\0\0\0\0"),
        element(0x0F, b"\x0f\0\0\0\x01\0\0\0\0\x05\0\0\0\0"),
        element(0x10, b"\0"),
        element(0x14, b""),
        element(0x0A, b"", name=b"\xff"),
    ],
)
def test_malformed_documents(document: bytes) -> None:
    fault(document)


def test_the_fault_is_named() -> None:
    error = fault(element(3, element(4, element(2, b"\x02\0\0\0\xff\0", b"0"), b"list"), b"outer"))
    assert (error.field, error.metadata) == ("feed.collation", {"field": "feed.collation", "path": "outer.list.0"})
    assert error.message.startswith("malformed BSON in feed.collation at outer.list.0: ")
    assert fault(b"").message.startswith("malformed BSON in feed.collation: ")
    assert "UTF-8" in error.message


def test_depth_is_bounded_at_100() -> None:
    check_bson(nested(100), "x")
    assert "100" in fault(nested(101)).message
    assert "100" in fault(nested(5000)).message


@given(st.binary(max_size=80))
def test_any_bytes_pass_or_are_refused(noise: bytes) -> None:
    for document in (noise, element(3, noise), struct.pack("<i", len(noise) + 5) + noise + b"\0"):
        try:
            check_bson(document, "x")
        except FeedmuxError as error:
            assert error.reason is ErrorReason.BSON_INVALID  # noqa: PT017 - it need not raise


@given(st.integers(0, 8 * len(bson.encode(EVERY_TYPE)) - 1))
def test_what_passes_can_be_decoded_by_bson(bit: int) -> None:
    flipped = bytearray(bson.encode(EVERY_TYPE))
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        check_bson(bytes(flipped), "x")
    except FeedmuxError:
        return
    bson.decode(bytes(flipped), bson.CodecOptions(datetime_conversion=bson.DatetimeConversion.DATETIME_MS))
