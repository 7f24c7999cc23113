import zlib

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.position import (
    POSITION_BYTES_MAX,
    Position,
    PositionEncoder,
    decode_position,
    encode_position,
    scope_fingerprint,
)
from feedmux_server.core.resume_token import ResumeToken

SCOPE = scope_fingerprint("acme", "rs0:65f0", "shop.orders")
KEY = b"streamky"
EVENT_DATA = "826B01668C000000022B022C0100296E5A1004942584E96D514A63B59E7230E38388D7463C5F6964003C6B000004"
EVENT = ResumeToken.decode(bson.encode({"_data": EVENT_DATA}))
TYPED = ResumeToken.decode(bson.encode({"_data": EVENT_DATA, "_typeBits": b"@"}))
LOWER = ResumeToken.decode(bson.encode({"_data": EVENT_DATA.lower()}))
MARK = ResumeToken.high_water_mark(7 << 32 | 1)


def refused(data: bytes, fingerprint: bytes = SCOPE) -> ErrorReason:
    with pytest.raises(FeedmuxError) as caught:
        decode_position(data, fingerprint)
    return caught.value.reason


def checked(content: bytes) -> bytes:
    return content + zlib.crc32(content).to_bytes(4)


@pytest.mark.parametrize("token", [EVENT, TYPED, LOWER, MARK])
def test_round_trip(token: ResumeToken) -> None:
    position = Position(SCOPE, KEY, token)
    data = encode_position(position)
    assert data == PositionEncoder(SCOPE, KEY).encode(token)
    assert decode_position(data, SCOPE) == position


@given(st.integers(0, 2**64 - 1), st.sampled_from([1, 2]), st.binary(min_size=8, max_size=8))
def test_any_operation_time_round_trips(cluster_time: int, version: int, key: bytes) -> None:
    position = Position(SCOPE, key, ResumeToken.high_water_mark(cluster_time, version))
    assert decode_position(encode_position(position), SCOPE) == position


@pytest.mark.parametrize("token", [EVENT, MARK])
def test_every_flipped_bit_and_every_truncation_is_refused(token: ResumeToken) -> None:
    data = encode_position(Position(SCOPE, KEY, token))
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert refused(bytes(flipped)) is ErrorReason.POSITION_INVALID
    for length in range(len(data)):
        assert refused(data[:length]) is ErrorReason.POSITION_INVALID
    assert refused(data + b"\0") is ErrorReason.POSITION_INVALID


@pytest.mark.parametrize(
    "other",
    [
        ("acme2", "rs0:65f0", "shop.orders"),
        ("acme", "rs1:65f0", "shop.orders"),
        ("acme", "rs0:65f0", "shop"),
        ("acmer", "s0:65f0", "shop.orders"),
    ],
)
def test_positions_of_other_scopes_are_foreign(other: tuple[str, str, str]) -> None:
    data = encode_position(Position(scope_fingerprint(*other), KEY, EVENT))
    assert refused(data) is ErrorReason.POSITION_FOREIGN


def test_well_checked_nonsense_is_invalid() -> None:
    head = bytes((0xF1, 0)) + SCOPE + KEY
    for content in (head, head + b"x", head[:1] + b"\x02" + head[2:] + b"x", b"\xf2" + head[1:] + EVENT.raw):
        assert refused(checked(content)) is ErrorReason.POSITION_INVALID
    assert refused(checked(bytes((0xF1, 1)) + SCOPE + KEY + b"nonsense")) is ErrorReason.POSITION_INVALID
    assert refused(b"\xf1" * (POSITION_BYTES_MAX + 1)) is ErrorReason.POSITION_INVALID
    assert refused(b"") is ErrorReason.POSITION_INVALID


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(noise: bytes) -> None:
    for data in (noise, b"\xf1" + noise, checked(b"\xf1" + noise)):
        with pytest.raises(FeedmuxError):
            decode_position(data, SCOPE)


@pytest.mark.parametrize("type_bits", [b"", b"@"])
def test_a_huge_token_gives_way_to_the_time_before_it(type_bits: bytes) -> None:
    data = EVENT_DATA[:-4] + "FF" * 5000 + "0004"
    huge = ResumeToken.decode(bson.encode({"_data": data} | ({"_typeBits": type_bits} if type_bits else {})))
    encoded = encode_position(Position(SCOPE, KEY, huge))
    assert len(encoded) <= POSITION_BYTES_MAX
    token = decode_position(encoded, SCOPE).token
    assert token.is_high_water_mark
    assert token.cluster_time == huge.cluster_time
    assert huge.is_after(token)


def test_the_encoder_wants_eight_bytes_each() -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        PositionEncoder(b"short", KEY)
