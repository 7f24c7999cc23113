import zlib
from dataclasses import replace

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.position import (
    COPIED_BYTES_MAX,
    POSITION_BYTES_MAX,
    Position,
    PositionEncoder,
    as_shown,
    copied_of,
    decode_position,
    encode_position,
    inspect_position,
    scope_fingerprint,
)
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.core.positions.resume_token import Copied, Given, ResumeToken
from tests.tables import over

SCOPE = scope_fingerprint("acme", "rs0:65f0", "shop.orders")
KEY = b"streamky"
EVENT_DATA = "826B01668C000000022B022C0100296E5A1004942584E96D514A63B59E7230E38388D7463C5F6964003C6B000004"
EVENT_DATA_BYTES = bytes.fromhex(EVENT_DATA)
EVENT = ResumeToken.decode(bson.encode({"_data": EVENT_DATA}))
TYPED = ResumeToken.decode(bson.encode({"_data": EVENT_DATA, "_typeBits": b"@"}))
LOWER = ResumeToken.decode(bson.encode({"_data": EVENT_DATA.lower()}))
OLD, NEW, OTHER = (bytes([each]) * 32 for each in (1, 2, 3))
KEYS = PositionKeys([OLD])
MARK = ResumeToken.high_water_mark(7 << 32 | 1)


def refused(data: bytes, fingerprint: bytes = SCOPE, keys: PositionKeys = KEYS) -> ErrorReason:
    with pytest.raises(FeedmuxError) as caught:
        decode_position(data, fingerprint, keys)
    return caught.value.reason


def refuses_damage(data: bytes, *, flipped: bool = True) -> None:
    """It is refused if its end is cut off, or one of its bits is another."""
    damaged = [data[:length] for length in range(len(data))]
    for bit in range(len(data) * 8 * flipped):
        other = bytearray(data)
        other[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(other))
    assert {refused(each) for each in damaged} == {ErrorReason.POSITION_INVALID}


def signed(content: bytes) -> bytes:
    """A position signed as only the holder of the key can sign it."""
    return content + KEYS.signing.sign(content)


@over("token", [EVENT, TYPED, LOWER, MARK])
def test_round_trip(token: ResumeToken) -> None:
    position = Position(SCOPE, KEY, token)
    data = encode_position(position, KEYS)
    assert data == PositionEncoder(KEYS, SCOPE, KEY).encode(token)
    assert decode_position(data, SCOPE, KEYS) == position


@given(st.integers(0, 2**64 - 1), st.sampled_from([1, 2]), st.binary(min_size=8, max_size=8))
def test_any_operation_time_round_trips(cluster_time: int, version: int, key: bytes) -> None:
    position = Position(SCOPE, key, ResumeToken.high_water_mark(cluster_time, version))
    assert decode_position(encode_position(position, KEYS), SCOPE, KEYS) == position


@over("token", [EVENT, MARK])
def test_every_flipped_bit_and_every_truncation_is_refused(token: ResumeToken) -> None:
    data = encode_position(Position(SCOPE, KEY, token), KEYS)
    refuses_damage(data)
    assert refused(data + b"\0") is ErrorReason.POSITION_INVALID


@over(
    "other",
    [
        ("acme2", "rs0:65f0", "shop.orders"),
        ("acme", "rs1:65f0", "shop.orders"),
        ("acme", "rs0:65f0", "shop"),
        ("acmer", "s0:65f0", "shop.orders"),
    ],
)
def test_positions_of_other_scopes_are_foreign(other: tuple[str, str, str]) -> None:
    data = encode_position(Position(scope_fingerprint(*other), KEY, EVENT), KEYS)
    assert refused(data) is ErrorReason.POSITION_FOREIGN


def test_signed_nonsense_is_invalid() -> None:
    head = bytes((0xF2, 0)) + KEYS.signing.id + SCOPE + KEY
    assert decode_position(signed(head + EVENT.raw), SCOPE, KEYS).token == EVENT
    for content in (head, head + b"x", head[:1] + b"\x10" + head[2:] + EVENT.raw, b"\xf3" + head[1:] + EVENT.raw):
        assert refused(signed(content)) is ErrorReason.POSITION_INVALID
    assert refused(signed(bytes((0xF2, 1)) + head[2:] + b"nonsense")) is ErrorReason.POSITION_INVALID
    assert refused(b"\xf2" * (POSITION_BYTES_MAX + 1)) is ErrorReason.POSITION_INVALID
    assert refused(b"") is ErrorReason.POSITION_INVALID


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(noise: bytes) -> None:
    for data in (noise, b"\xf2" + noise, signed(b"\xf2" + noise)):
        with pytest.raises(FeedmuxError):
            decode_position(data, SCOPE, KEYS)


def test_a_position_with_a_checksum_alone_is_refused() -> None:
    """The layout before positions were authenticated: anybody could make such a position."""
    content = bytes((0xF1, 0)) + SCOPE + KEY + EVENT.raw
    assert refused(content + zlib.crc32(content).to_bytes(4)) is ErrorReason.POSITION_INVALID


def test_a_position_of_another_deployment_is_refused() -> None:
    data = encode_position(Position(SCOPE, KEY, EVENT), PositionKeys([OTHER]))
    assert refused(data) is ErrorReason.POSITION_INVALID
    forged = data[:2] + KEYS.signing.id + data[6:]
    assert refused(forged) is ErrorReason.POSITION_INVALID


@over("given_by", list(Given))
def test_who_gave_the_token_stays_with_it(given_by: Given) -> None:
    for token in (EVENT, TYPED, MARK):
        data = encode_position(Position(SCOPE, KEY, token.given_as(given_by)), KEYS)
        assert decode_position(data, SCOPE, KEYS).token.given is given_by
        assert inspect_position(data).token == token


def test_rotation_refuses_nothing_that_was_made_within_it() -> None:
    """Add the new key, then let it sign, then remove the old key; two servers change at different times."""
    one, other = PositionKeys([OLD]), PositionKeys([OLD])
    encoders = [PositionEncoder(keys, SCOPE, KEY) for keys in (one, other)]
    made = [encoders[0].encode(EVENT)]
    for materials in ([OLD, NEW], [NEW, OLD]):
        for keys in (one, other):
            keys.replace(materials)
            made += [encoder.encode(EVENT) for encoder in encoders]
            for data in made:
                for reader in (one, other):
                    assert decode_position(data, SCOPE, reader).token == EVENT
    one.replace([NEW])
    assert refused(made[0], keys=one) is ErrorReason.POSITION_INVALID
    assert decode_position(made[-1], SCOPE, one).token == EVENT, "sessions sign with the new key while they run"


def test_without_keys_nothing_is_made_or_read() -> None:
    data = encode_position(Position(SCOPE, KEY, EVENT), KEYS)
    nothing = PositionKeys()
    assert refused(data, keys=nothing) is ErrorReason.STATE_UNAVAILABLE
    with pytest.raises(FeedmuxError) as caught:
        PositionEncoder(nothing, SCOPE, KEY).encode(EVENT)
    assert caught.value.reason is ErrorReason.STATE_UNAVAILABLE


def test_the_encoder_wants_eight_bytes_each() -> None:
    with pytest.raises(ValueError, match="8 bytes"):
        PositionEncoder(KEYS, b"short", KEY)


UP_TO = Copied(bson.encode({"_id": "x" * 20}), 7)


@pytest.mark.parametrize(
    "copied",
    [
        UP_TO,
        replace(UP_TO, generation=2**53 - 1),
        replace(UP_TO, database="shop", collection="a.é"),
        replace(UP_TO, database="shop", collection="a.é", generation=1, up_to=b""),
    ],
)
@pytest.mark.parametrize("token", [EVENT, TYPED, LOWER, MARK])
def test_a_position_within_a_copy(token: ResumeToken, copied: Copied) -> None:
    copying = token.while_copying(copied)
    data = encode_position(Position(SCOPE, KEY, copying), KEYS)
    read = decode_position(data, SCOPE, KEYS).token
    assert (read, read.copied, read.given) == (copying, copied, token.given)
    assert bool(data[1] & 0x20) is bool(copied.collection), "a server that knows no copies of several rejects this flag"
    assert bool(data[1] & 0x80) is bool(copied.generation), "the former layout is read where there is none"
    with pytest.raises(FeedmuxError):
        decode_position(signed(bytes((data[0], data[1] & ~0x08)) + data[2:-16]), SCOPE, KEYS)
    assert copied_of(data) == read
    assert data[1] & ~0x07, "a server that does not know copies rejects flags that it does not know"
    refuses_damage(data)


@over("token", [EVENT, TYPED, LOWER, MARK, EVENT.given_as(Given.AS_TIME)])
def test_a_position_after_a_copy_whose_end_may_not_be_noticed(token: ResumeToken) -> None:
    completed = Copied(documents=7, generation=2**53 - 1)
    encoder = PositionEncoder(KEYS, SCOPE, KEY)
    data = encoder.encode_completed(token, completed)
    read = decode_position(data, SCOPE, KEYS)
    assert (read.token, read.token.given, read.token.copied, read.completed) == (token, token.given, None, completed)
    assert data[1] & 0x40, "a server that does not know this rejects the flag"
    assert as_shown(data, KEYS) == encoder.encode(token), "a client gets the position alone"
    for damaged in (data[:20], data[:-1], data[:26] + data[27:]):
        assert as_shown(damaged, KEYS) == damaged, "one that was not made here stays as it is"
    content = data[:-16]
    for flags in (data[1] | 0x08, data[1] | 0x10, data[1] | 0x20, data[1] | 0x80, data[1] & ~0x40):
        assert refused(signed(bytes((data[0], flags)) + content[2:])) is ErrorReason.POSITION_INVALID
    for length in range(2, len(content) - len(token.raw) // 2):
        assert refused(signed(content[:length])) is ErrorReason.POSITION_INVALID, "the counts are cut short"


def test_signed_nonsense_within_a_copy_is_invalid() -> None:
    head = bytes((0xF2, 0x08)) + KEYS.signing.id + SCOPE + KEY
    for content in (b"", b"\0", b"\0\0", b"\xff\xff" + bytes(20), b"\0\0" + bytes(8), b"\0\5hello" + bytes(8)):
        if content:
            assert refused(signed(head + content)) is ErrorReason.POSITION_INVALID
    token = encode_position(Position(SCOPE, KEY, MARK), KEYS)[len(head) : -16]
    named = head[:1] + b"\x29" + head[2:] + len(token).to_bytes(2) + token + bytes(8)
    for name in (b"", b"\0", b"\0\4a.b", b"\0\2a.", b"\0\2.b", b"\0\0"):
        assert refused(signed(named + name)) is ErrorReason.POSITION_INVALID
    assert refused(signed(head[:1] + b"\x21" + head[2:] + token)) is ErrorReason.POSITION_INVALID


def test_a_position_within_a_copy_is_never_too_long() -> None:
    """Of a change to a document with a large `_id`, the position may be the one before all events of its time."""
    copied = Copied(bson.encode({"_id": "x" * (COPIED_BYTES_MAX - 19)}) + b"", 7, "d" * 63, "c" * 191)
    large = ResumeToken.from_key_string(EVENT_DATA_BYTES[:-2] + b"\x3c" + b"x" * 3000 + b"\0\0\x04")
    read = decode_position(encode_position(Position(SCOPE, KEY, large.while_copying(copied)), KEYS), SCOPE, KEYS).token
    assert (read, read.copied) == (large.while_copying(copied).before_time(), copied)
    assert large.is_after(read)


def test_positions_outside_a_copy() -> None:
    for data in (encode_position(Position(SCOPE, KEY, EVENT), KEYS), b"", b"x", b"\xf2\x08", b"\xf2\x08damaged"):
        assert copied_of(data) is None
