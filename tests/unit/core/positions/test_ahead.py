"""Positions of groups, with what is settled ahead of them."""

import bson

from feedmux_server.core.errors import ErrorReason
from feedmux_server.core.positions.ahead import HOLES_MAX, Ahead, Of, mark_of
from feedmux_server.core.positions.position import (
    POSITION_BYTES_MAX,
    Position,
    PositionEncoder,
    as_shown,
    decode_position,
    encode_position,
    inspect_position,
)
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.core.positions.resume_token import Copied, Given, ResumeToken
from feedmux_server.core.positions.stored_order import group_order, order_bytes
from tests.tables import over
from tests.unit.core.positions.test_position import (
    EVENT,
    EVENT_DATA,
    EVENT_DATA_BYTES,
    KEY,
    KEYS,
    LOWER,
    MARK,
    OTHER,
    SCOPE,
    TYPED,
    refused,
    refuses_damage,
    signed,
)

BITS = {"_typeBits": b"@"}
LOW = MARK
HOLES = {mark_of(bytes((number,))): number for number in (1, 2, 200)}
SECOND = EVENT.cluster_time >> 32
ENCODER = PositionEncoder(KEYS, SCOPE, KEY)


def encoded(
    low: ResumeToken = LOW, high: ResumeToken = EVENT, holes: dict[bytes, int] = HOLES, of: Of | None = None
) -> bytes:
    return ENCODER.encode_ahead(low, lambda most: ahead_of(high, dict(list(holes.items())[:most]), of))


def ahead_of(high: ResumeToken, holes: dict[bytes, int], of: Of | None = None) -> Ahead:
    return Ahead(high, holes, dict.fromkeys(holes, of or Of(b"kk", high.cluster_time >> 32 << 32 | 3, 4)))


def test_a_vector() -> None:
    """The bytes that this version stores, and later ones read."""
    data = encoded(of=Of(b"kk", SECOND - 2 << 32 | 3, 4))
    low = bytes.fromhex("82000000070000000" + "12b0229296e04")
    assert data[:-16] == b"".join((
        b"\xf2\x31", KEYS.signing.id, SCOPE, KEY, len(low).to_bytes(2), low,
        len(EVENT_DATA_BYTES).to_bytes(2), EVENT_DATA_BYTES,
        *(mark_of(bytes((number,))) + bytes((number,)) + b"kk\0\2\0\3\0\4" for number in (1, 2, 200)),
    ))  # fmt: skip
    assert mark_of(b"\1").hex() == "03db45068185"


@over("before, increment, read", [
    (0, 1 << 30, (SECOND << 32) + 0xFFFF),
    (0x8000, 7, (SECOND - 0x8000) << 32 | 7),
    (0x8001, 7, (SECOND - 0x8040) << 32 | 7),
    (0x8041, 7, (SECOND - 0x8080) << 32 | 7),
    (2_129_792, 7, (SECOND - 2_129_792) << 32 | 7),
    (2_129_793, 7, 0),
    (1 << 30, 7, 0),
])  # fmt: skip
def test_a_time_without_room_is_an_earlier_one(before: int, increment: int, read: int) -> None:
    ahead = inspect_position(encoded(of=Of(b"kk", (SECOND - before) << 32 | increment, 1 << 20))).ahead
    assert ahead is not None
    assert {(each.time, each.operation) for each in ahead.of.values()} == {(read, 0xFFFF)}


def test_a_vector_of_earlier_versions() -> None:
    data = ENCODER.encode_ahead(LOW, lambda most: Ahead(EVENT, HOLES))
    low = bytes.fromhex("82000000070000000" + "12b0229296e04")
    assert data[:-16] == b"".join((
        b"\xf2\x11", KEYS.signing.id, SCOPE, KEY, len(low).to_bytes(2), low,
        len(EVENT_DATA_BYTES).to_bytes(2), EVENT_DATA_BYTES,
        *(mark_of(bytes((number,))) + bytes((number,)) for number in (1, 2, 200)),
    ))  # fmt: skip
    read = inspect_position(data).ahead
    assert read == Ahead(EVENT, HOLES)


@over("given", list(Given))
def test_round_trip_and_what_others_read(given: Given) -> None:
    low = LOW.given_as(given)
    data = encoded(low)
    read = decode_position(data, SCOPE, KEYS)
    assert (read.token, read.token.given, read.ahead) == (low, given, ahead_of(EVENT, HOLES))
    assert as_shown(data, KEYS) == encode_position(Position(SCOPE, KEY, low), KEYS)
    assert data[1] & ~0x0F, "a server that does not know it rejects flags that it does not know"


def test_what_is_not_ours_stays() -> None:
    data, other = encoded(), PositionKeys([OTHER])
    for each in (b"", b"x", b"\xf2\x11", b"\xf2\x11damaged", ENCODER.encode(EVENT), data[:-1] + bytes((data[-1] ^ 1,))):
        assert as_shown(each, KEYS) == each
    assert as_shown(data, other) == data


def test_what_is_damaged_or_nonsense_is_invalid() -> None:
    data = encoded()
    refuses_damage(data)
    head, tokens = data[:22], data[22:-16]
    for flags in (0x11, 0x10, 0x19, 0x18, 0x31, 0x30):
        for content in (b"\0", b"\0\0", b"\0\0\0\0", b"\xff\xff" + bytes(20), tokens[:-1], tokens[:20] + b"\0\0"):
            assert refused(signed(bytes((0xF2, flags)) + head[2:] + content)) is ErrorReason.POSITION_INVALID
    for flags in (0x30, 0x10, 0x11, 0x18, 0x19, 0x17, 0x20, 0x60, 0x91, 0xB1):
        assert refused(signed(bytes((0xF2, flags)) + head[2:] + tokens)) is ErrorReason.POSITION_INVALID


def test_as_many_holes_as_fit() -> None:
    many = {mark_of(number.to_bytes(2)): 1 for number in range(2 * HOLES_MAX)}
    data = encoded(holes=many)
    read = inspect_position(data)
    assert (len(data) <= POSITION_BYTES_MAX, read.ahead and len(read.ahead.holes)) == (True, HOLES_MAX)
    long = ResumeToken.from_key_string(EVENT_DATA_BYTES[:-2] + b"\x3c" + b"x" * 1500 + b"\0\0\x04")
    read = inspect_position(encoded(long, long, holes=many))
    assert read.ahead is not None
    assert 60 < len(read.ahead.holes) < 100
    assert read.token == long


def test_holes_are_looked_for_once_whatever_the_length_of_the_tokens() -> None:
    """Again where the higher token is longer than before."""
    encoder, asked = PositionEncoder(KEYS, SCOPE, KEY), list[int]()
    many = {mark_of(number.to_bytes(2)): 1 for number in range(2 * HOLES_MAX)}

    def token(size: int) -> ResumeToken:
        return ResumeToken.from_key_string(EVENT_DATA_BYTES[:-2] + b"\x3c" + b"x" * size + b"\0\0\x04")

    for low, high, times in (
        (LOW, EVENT, 1),
        (token(1500), token(1500), 2),
        (token(1500), token(1500), 1),
        (token(1500), EVENT, 1),
        (token(1500), EVENT, 1),
        (token(1500), token(3500), 2),
        (token(1900), EVENT, 1),
        (TYPED, EVENT, 1),
    ):
        asked.clear()

        def ahead(most: int, high: ResumeToken = high) -> Ahead:
            asked.append(most)
            return ahead_of(high, dict(list(many.items())[:most]))

        read = inspect_position(encoder.encode_ahead(low, ahead))
        assert len(asked) == times
        assert (len(read.ahead.holes) if read.ahead else 0) == asked[-1]


LONG = ResumeToken.from_key_string(EVENT_DATA_BYTES[:-2] + b"\x3c" + b"x" * 5_000 + b"\0\0\x04")
TYPED_LONG = ResumeToken.decode(
    bson.encode({"_data": "82" + EVENT_DATA[2:-4] + "3C" + "78" * 1_970 + "000004", **BITS})
)
KINDS = (MARK, EVENT, TYPED, LOWER, LONG, TYPED_LONG)


@over("pair", [(low, high) for low in KINDS for high in KINDS])
def test_every_kind_of_token_keeps_what_is_ahead(pair: tuple[ResumeToken, ResumeToken]) -> None:
    """MongoDB writes `_typeBits` for every `_id` that is an Int64, a double or a decimal, or has one of these."""
    low, high = pair
    data = encoded(low, high)
    read = decode_position(data, SCOPE, KEYS)
    assert read.ahead is not None
    assert (read.token, read.token.given, read.ahead) == (low, low.given, ahead_of(high, HOLES))
    assert (read.token.raw, read.token.digest) == (low.raw, low.digest)
    assert (read.ahead.high.raw, read.ahead.high.digest) == (high.raw, high.digest)
    assert as_shown(data, KEYS) == encode_position(Position(SCOPE, KEY, low), KEYS)
    is_compact = {low, high} <= {MARK, EVENT}
    assert data[1] & 0x01 == is_compact, "the former layout where that is enough; servers that know no other reject it"
    refuses_damage(data, flipped=False)


@over("given", list(Given))
def test_who_gave_a_token_with_type_bits_stays_with_it(given: Given) -> None:
    assert inspect_position(encoded(TYPED.given_as(given), TYPED)).token.given is given


def test_what_is_nonsense_with_type_bits_is_invalid() -> None:
    data = encoded(TYPED, TYPED)
    head, size = data[:22], 2 + int.from_bytes(data[22:24])
    assert refused(signed(data[:-17])) is ErrorReason.POSITION_INVALID, "half a hole"
    good = data[22 : 22 + size]
    for low in (b"", b"\0", b"\0\0", b"\0\0nonsense", b"\xff\xff" + good[4:], good[2:] + b"\0", b"\0\1x", good[2:-1]):
        content = head + len(low).to_bytes(2) + low
        assert refused(signed(content + good)) is ErrorReason.POSITION_INVALID
        assert refused(signed(head + good + len(low).to_bytes(2) + low)) is ErrorReason.POSITION_INVALID


def test_many_holes_with_tokens_of_any_kind() -> None:
    many = {mark_of(number.to_bytes(2)): 1 for number in range(2 * HOLES_MAX)}
    for token, least in ((TYPED, 250), (LONG, 100), (TYPED_LONG, 1)):
        data = encoded(token, token, many)
        ahead = inspect_position(data).ahead
        assert ahead is not None
        assert (len(data) <= POSITION_BYTES_MAX, len(ahead.holes) >= least) == (True, True)


def test_of_two_tokens_that_do_not_both_fit_the_lower_is_the_time_before_it() -> None:
    """A client, which does not see what is ahead, gets the events of that time again. A group does not."""
    many = {mark_of(number.to_bytes(2)): 1 for number in range(2 * HOLES_MAX)}
    for size, least in ((1990, 130), (3900, 5), (3951, 2)):
        longer = ResumeToken.from_key_string(EVENT_DATA_BYTES[:-2] + b"\x3c" + b"x" * size + b"\0\0\x04")
        assert not longer.digest
        data = encoded(longer, longer, many)
        read = inspect_position(data)
        assert read.ahead is not None
        assert (read.token, read.ahead.high, len(data) <= POSITION_BYTES_MAX) == (longer.before_time(), longer, True)
        assert len(read.ahead.holes) >= least
        assert ENCODER.encode_ahead(longer, lambda most: None) == ENCODER.encode(longer), "with nothing ahead, itself"


def test_what_is_not_ahead_is_left_out() -> None:
    copying = MARK.while_copying(Copied(b"", 3))
    assert encoded(copying) == ENCODER.encode(copying)
    assert ENCODER.encode_ahead(LOW, lambda most: None) == ENCODER.encode(LOW)


def test_attempts_are_one_byte() -> None:
    read = inspect_position(encoded(holes={mark_of(b"1"): 10_000}))
    assert read.ahead is not None
    assert read.ahead.holes == {mark_of(b"1"): 255}


def test_the_order_at_one_place_is_by_host_and_then_by_what_has_changed() -> None:
    orders = [group_order(EVENT, *each) for each in ((1, 0), (1, 300), (2, 0), (300, 7))]
    assert sorted(orders) == orders
    assert order_bytes(EVENT) < orders[0]
    later = ResumeToken.from_key_string(EVENT_DATA_BYTES[:-3] + b"\x01\x00\x04")
    assert later.is_after(EVENT) == (order_bytes(later) > group_order(EVENT, (1 << 64) - 1, (1 << 64) - 1))
