"""The tokens in these tables were collected from mongod 6.0.5 (version 1) and 6.0.27 (version 2)."""

import math
from itertools import pairwise, product
from typing import Any

import bson
import pytest
from bson import Binary, Code, DatetimeMS, MaxKey, MinKey, ObjectId, Timestamp
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.positions.key_string import KeyStringReader
from feedmux_server.core.positions.resume_token import (
    Copied,
    ResumeToken,
    UnknownTokenLayout,
    beginning_of_copy,
    describe,
    generation_before,
    key_string,
    without_document,
)
from feedmux_server.core.positions.stored_order import order_bytes
from tests.sim.events import BEGIN, event_token
from tests.tables import over
from tests.unit.core.positions.test_token_versions import Change

UUID_1 = "5A1004942584E96D514A63B59E7230E38388D7"
UUID_2 = "5A10049AEA45DEEBB048A78715E2D985F0F3C6"
OP_2 = "463C6F7065726174696F6E54797065003C"
KEY_2 = "0046646F63756D656E744B657900"

# A run of events on collections, in their order in the stream.
VERSION_1 = [
    "826B01668B0000002D2B0229296E04",
    f"826B01668B0000002E2B022C0100296E{UUID_1}46645F696400646B01668B219E869C93FE48CC0004",
    f"826B01668B0000002E2B022C01002B026E{UUID_1}46645F696400646B01668B219E869C93FE48CD0004",
    f"826B01668B0000002E2B022C01002BFE6E{UUID_1}46645F696400646B01668B219E869C93FE494B0004",
    f"826B01668B0000002E2B022C01002C01006E{UUID_1}46645F696400646B01668B219E869C93FE494C0004",
    f"826B01668B0000002E2B022C01002C02566E{UUID_1}46645F696400646B01668B219E869C93FE49F70004",
    "826B01668B0000002F2B0229296E04",
    f"826B01668C000000022B022C0100296E{UUID_1}463C5F6964003C6B000004",
    "826B01668C000000102B0229296E04",
    "826B01668C000000102B022C0100296E5A1004FC956A829FBD4F4BA295CC49F003525704",
    "826B01668C000000102B022C0100296F5A1004FC956A829FBD4F4BA295CC49F003525704",
    f"826B01668C000000112B022C0100296E{UUID_1}04",
    f"826B01668C000000112B022C0100296F{UUID_1}04",
    "826B016814000000042B022C0100296E04",
    "826B016814000000042B022C0100296F04",
]
VERSION_2 = [
    "826B0168CA000000022B0429296E1404",
    f"826B0168CA000000022B042C0100296E{UUID_2}{OP_2}696E73657274{KEY_2}463C5F6964003C6B00000004",
    "826B0168CA000000092B0429296E1404",
    f"826B0169F3000000012B042C0100296E{UUID_2}{OP_2}757064617465{KEY_2}463C5F6964003C6269670000002904",
    f"826B0169F3000000012B042C0100296E{UUID_2}{OP_2}757064617465{KEY_2}463C5F6964003C6269670000002B0204",
    f"826B0169F3000000012B042C0100296E{UUID_2}{OP_2}757064617465{KEY_2}463C5F6964003C6269670000002B0404",
    f"826B016A3F000000042B042C0100296E{UUID_2}{OP_2}696E73657274{KEY_2}461E5F6964002B8C000004",
    f"826B016A3F000000042B042C01002B026E{UUID_2}{OP_2}696E73657274{KEY_2}461E5F6964002B8E000004",
    "826B016A40000000022B042C0100296E14463C6F7065726174696F6E54797065003C64726F704461746162617365000004",
    "826B016A40000000022B042C0100296F14463C6F7065726174696F6E54797065003C64726F704461746162617365000004",
]
# Document keys: the tail of the token after `_id`, its type bits, and the output of `describe`.
DOCUMENT_KEYS: list[tuple[str, str, object]] = [
    ("3C5F6964003C73747200", "", "str"),
    ("3C5F6964003C6100FF6200", "", "a\0b"),
    ("3C5F6964003C00", "", ""),
    ("3C5F6964003CC3A9F09F988000", "", "é😀"),
    ("1E5F6964002B02", "", 1),
    ("1E5F69640029", "", 0),
    ("1E5F69640027F5", "", -5),
    ("1E5F6964002C01FE", "", 255),
    ("1E5F6964002C0200", "", 256),
    ("1E5F69640026FDFF", "", -256),
    ("1E5F6964002EFFFFFFFE", "", 2**31 - 1),
    ("1E5F69640030020000000000", "8180", 2**40),
    ("1E5F69640023FBFFFFFFFF", "8180", -(2**33)),
    ("1E5F69640032FFFFFFFFFFFFFFFE", "8180", 2**63 - 1),
    ("1E5F6964001FF83FFFFFFFFFFFFF", "8180", -(2**63)),
    ("1E5F6964002B0380000000000000", "40", 1.5),
    ("1E5F69640028007FFFFFFFFFFFFF", "40", -0.5),
    ("1E5F6964002B04", "40", 2),
    ("1E5F6964002B0740000000000000", "40", 3.25),
    ("1E5F6964002C0259C00000000000", "40", 300.75),
    ("1E5F6964002AFB93E2D6238DA3C4", "40", 1e-05),
    ("1E5F696400337C6FC8791000EB38", "40", 1e300),
    ("1E5F6964001F0000000000000000", "40", -math.inf),
    ("1E5F6964002B0319999999999992", "82c01e", 1.1),  # Decimal128("1.10")
    ("1E5F69640027F9", "82c001", -3),
    ("1E5F6964002AFEE6666666666666", "82c03e", 0.1),
    ("145F69640014", "", None),
    ("645F6964006465F000000000000000000001", "", ObjectId("65f000000000000000000001")),
    ("465F696400461E78002B023C79003C7A0000", "", {"x": 1, "y": "z"}),
    ("465F69640046507800502B02461471001400000000"[:-2], "", {"x": [1, {"q": None}]}),
    ("465F6964004600", "", {}),
    ("6E5F6964006F", "", True),
    ("6E5F6964006E", "", False),
    ("785F696400788000018CC820DB2E", "", DatetimeMS(1704164645678)),
    ("825F696400820000000500000006", "", Timestamp(5, 6)),
    ("5A5F6964005A040061620063", "", Binary(b"ab\0c")),
    ("0A5F6964000A", "", MinKey()),
    ("F05F696400F0", "", MaxKey()),
    ("A05F696400A06600", "", Code("f")),
]


def token(data: str, **more: Any) -> ResumeToken:
    return ResumeToken.decode(bson.encode({"_data": data, **more}))


@over("run", [VERSION_1, VERSION_2])
def test_tokens_sort_as_the_events_came(run: list[str]) -> None:
    tokens = [token(data) for data in run]
    for earlier, later in pairwise(tokens):
        assert later.is_after(earlier)
        assert not earlier.is_after(later)
        assert not earlier.is_after(earlier)


@over("data", VERSION_1 + VERSION_2)
def test_raw_and_key_string_round_trip(data: str) -> None:
    raw = bson.encode({"_data": data})
    decoded = ResumeToken.decode(raw)
    assert decoded.raw == raw
    assert key_string(decoded) == bytes.fromhex(data)
    assert ResumeToken.from_key_string(bytes.fromhex(data)) == decoded


@over(("tail", "type_bits", "value"), DOCUMENT_KEYS)
def test_document_keys(tail: str, type_bits: str, value: object) -> None:
    data = f"826B01668B000000042B022C0100296E{UUID_1}46{tail}0004"
    fields: dict[str, Any] = {"_data": data}
    if type_bits:
        fields["_typeBits"] = bytes.fromhex(type_bits)
    raw = bson.encode(fields)
    decoded = ResumeToken.decode(raw)
    assert decoded.cluster_time == 0x6B01668B << 32 | 4
    assert (key_string(decoded) is None) == bool(type_bits)
    described = describe(raw)
    assert described.event_identifier == {"_id": value}
    assert described.collection_uuid == "942584e9-6d51-4a63-b59e-7230e38388d7"
    assert described.undecoded == ""


def test_nan_as_document_key() -> None:
    described = describe(f"826B01668B000000102B022C0100296E{UUID_1}461E5F6964001E0004")
    assert described.event_identifier is not None
    assert math.isnan(described.event_identifier["_id"])


def test_a_description_keeps_what_it_cannot_read() -> None:
    described = describe(f"826B01668B000000042B022C0100296E{UUID_1}46C15F696400C10004")
    assert described.event_identifier is None
    assert described.undecoded == "46C15F696400C100"


@given(st.integers(0, 2**64 - 1), st.sampled_from([1, 2]))
def test_high_water_marks(cluster_time: int, version: int) -> None:
    mark = ResumeToken.high_water_mark(cluster_time, version)
    assert ResumeToken.decode(mark.raw) == mark
    assert mark.is_high_water_mark
    assert mark.cluster_time == cluster_time
    assert mark.version == version


def test_a_built_mark_is_the_one_that_mongodb_writes() -> None:
    for data in (VERSION_1[0], VERSION_2[0]):
        mongodb = token(data)
        assert ResumeToken.high_water_mark(mongodb.cluster_time, mongodb.version).raw == mongodb.raw


def test_versions_compare_by_time_type_transaction_and_invalidate() -> None:
    event_1 = token(f"826B0168CA000000022B022C0100296E{UUID_2}463C5F6964003C6B000004")
    mark_2, event_2 = token(VERSION_2[0]), token(VERSION_2[1])
    assert not event_1.is_after(event_2)
    assert not event_2.is_after(event_1)
    assert event_1.is_after(mark_2)
    assert not mark_2.is_after(event_1)
    mark_1 = ResumeToken.high_water_mark(mark_2.cluster_time)
    assert not mark_1.is_after(mark_2)
    assert not mark_2.is_after(mark_1)
    assert token(f"826B0168CA000000022B022C01002B026E{UUID_2}04").is_after(event_2)
    assert token(f"826B0168CA000000022B022C0100296F{UUID_2}04").is_after(event_2)


@over(
    "data",
    [
        "",
        "82",
        "04",
        "zz",
        "826B01668B0000002D",
        "826B01668B0000002D2B",
        "826B01668B0000002D2B0229296E",
        "826B01668B0000002D290229296E04",  # version 0
        "826B01668B0000002D2B0629296E04",  # version 3
        "826B01668B0000002D2B0329296E04",  # version 1 and a fraction
        "826B01668B0000002D2B022B0A296E04",  # type 5
        "826B01668B0000002D2B02293C6E04",  # a string as transaction index
        "826B01668B0000002D2B0229293C04",
        "826B01668B0000002D2B0229296E1404",  # null in version 1, absent in version 2: mongod rejects this token
        "826B01668B0000002D2B0429296E04",
        "786B01668B0000002D2B0229296E04",
        "826B01668B0000002D2B0229296E0 4",
    ],
)
def test_unknown_layouts(data: str) -> None:
    with pytest.raises(UnknownTokenLayout):
        token(data)


@over(
    "raw",
    [b"", b"\x05\0\0\0\0", bson.encode({"_data": Binary(b"\x82")}), bson.encode({"_data": VERSION_1[0]})[:-1]],
)
def test_unknown_documents(raw: bytes) -> None:
    with pytest.raises(UnknownTokenLayout):
        ResumeToken.decode(raw)
    with pytest.raises(UnknownTokenLayout):
        describe(raw)


def test_data_need_not_be_the_first_field() -> None:
    raw = bson.encode({"_typeBits": b"@", "_data": VERSION_1[7]})
    assert ResumeToken.decode(raw).key == token(VERSION_1[7]).key


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_unknown(noise: bytes) -> None:
    for raw in (noise, bson.encode({"_data": noise.hex()}), bson.encode({"_data": VERSION_1[0][:-2] + noise.hex()})):
        try:
            ResumeToken.decode(raw)
            describe(raw)
        except UnknownTokenLayout:
            pass


@given(st.binary(max_size=60))
def test_any_tail_is_described(noise: bytes) -> None:
    describe("826B01668B0000002E2B022C0100296E" + noise.hex() + "04")


def test_documents_of_a_copy_are_between_the_changes_before_and_after_their_time() -> None:
    mark = ResumeToken.high_water_mark(BEGIN)
    places = [mark.while_copying(Copied(b"", number)) for number in (0, 1, 255, 256, 1 << 40)]
    in_order = [event_token(BEGIN - 1), mark, *places, places[-1].copy_complete(), event_token(BEGIN)]
    for earlier, later in pairwise(in_order):
        assert later.is_after(earlier)
        assert order_bytes(later) > order_bytes(earlier) or earlier.cluster_time < later.cluster_time
    assert all(each.may_be_inside_event is False for each in places)
    assert places[1].outside_copy() == mark
    assert places[-1].copy_complete().copied is None


def test_a_position_within_a_copy_stays_there() -> None:
    inside, copied = event_token(BEGIN, fragment=0), Copied(b"", 3)
    assert inside.may_be_inside_event
    assert inside.while_copying(copied).before_event().copied == copied
    assert inside.while_copying(copied).outside_copy() == inside


def test_the_id_of_a_copied_document_is_a_token_with_the_document_beside_it() -> None:
    data = bson.decode(ResumeToken.high_water_mark(BEGIN).raw)["_data"]
    deep: dict[str, object] = {}
    for _ in range(90):
        deep = {"a": deep}
    for key in (1, "x" * 10_000, deep, dict.fromkeys("abcdefghij", 1)):
        raw = bson.encode({"_data": data, "snapshot": {"_id": key, "ns": {"db": "shop", "coll": "orders"}}})
        assert without_document(raw) == bson.encode({"_data": data})
    for other in (
        b"",
        b"\x05\0\0\0\0",
        bson.encode({"_data": data}),
        bson.encode({"_data": data, "snapshot": 1}),
        bson.encode({"_data": data, "snapshot": {}, "more": 1}),
        bson.encode({"snapshot": {}, "_data": data}),
        b"\x20\0\0\0\x02_data\0\xff\xff\xff\xff",
    ):
        assert without_document(other) is other


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused_with_value_error(noise: bytes) -> None:
    reader = KeyStringReader(noise)
    try:
        while not reader.at_end:
            reader.read()
    except ValueError:
        pass


def test_depth_is_bounded() -> None:
    with pytest.raises(ValueError, match="deeply"):
        KeyStringReader(b"\x50" * 100_000).read()


FIRST, SAME_TIME, LATER_TXN = Change(1, 0, 1, 1, "insert"), Change(1, 0, 1, 2, "insert"), Change(1, 3, 1, 1, "insert")


@over("version", [1, 2])
def test_events_of_one_time_are_ordered_as_mongodb_orders_them(version: int) -> None:
    tokens = [each.token(version) for each in (FIRST, SAME_TIME, LATER_TXN)]
    assert sorted(tokens, key=order_bytes) == tokens
    for one, other in product(tokens, repeat=2):
        assert (order_bytes(one) > order_bytes(other)) == one.is_after(other)


def test_a_session_of_a_newer_version_can_store_after_one_of_an_older() -> None:
    older = [each.token(1) for each in (FIRST, SAME_TIME, Change(1, 0, 9, 1, "update"))]
    assert all(order_bytes(FIRST.token(2)) > order_bytes(each) for each in older)


def test_a_time_comes_before_its_events_and_is_the_same_in_both_versions() -> None:
    marks = [ResumeToken.high_water_mark(BEGIN + 1, version) for version in (1, 2)]
    assert order_bytes(marks[0]) == order_bytes(marks[1])
    assert all(order_bytes(marks[0]) < order_bytes(FIRST.token(version)) for version in (1, 2))


def test_the_invalidate_event_comes_after_the_event_that_caused_it() -> None:
    cause = FIRST.token(1)
    data = bytes.fromhex(bson.decode(cause.raw)["_data"])
    invalidate = ResumeToken.from_key_string(data.replace(b"\x6e", b"\x6f", 1))
    assert invalidate.from_invalidate
    assert order_bytes(invalidate) > order_bytes(cause)


def test_generations_ascend() -> None:
    """Also where nothing was written meanwhile, a second has many writes, or the time of MongoDB was set back."""
    times = ((5 << 32 | 1, 5.5), (5 << 32 | 1, 5.6), (5 << 32 | 2, 5.1), (5 << 32 | 1 << 20, 4.0), (6 << 32, 6.0))
    begun = [beginning_of_copy(time, now_s) for time, now_s in times]
    lost = [begun[-1], ResumeToken.high_water_mark(7 << 32 | 3)]
    begun += [beginning_of_copy(2 << 32 | 1, 2.0).with_generation_after(generation_before(each)) for each in lost]
    generations = [each.copied.generation for each in begun if each.copied is not None]
    assert generations == sorted(set(generations))
    assert len(generations) == 7
