"""The key of an event, found in MongoDB's order of fields and in any other."""

import datetime
import random
import sys
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
from bson.binary import Binary
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from feedmux_server.core.events import event_keys
from feedmux_server.core.events.chunk import Rendition, document_offsets
from feedmux_server.core.events.event_keys import KEY_BYTES_MAX, FieldsRead, keys_of
from tests.tables import over
from tests.unit.core.delivery.group_events import in_transaction, ordered

NS = {"db": "shop", "coll": "orders"}
KEY = {"_id": 1}
WALL = {"wallTime": datetime.datetime(2026, 11, 28, tzinfo=datetime.UTC)}
NESTED = {"_id": 1, "documentKey": {"_id": 9}, "ns": {"db": "other"}}
HEAD: dict[str, Any] = {"_id": {"_data": "82"}, "operationType": "update", "clusterTime": Timestamp(1, 2)}


def keys(*events: dict[str, Any], fields_read: FieldsRead | None = None) -> list[bytes | None]:
    data = b"".join(map(ordered, events))
    return keys_of(Rendition(data, document_offsets(data)), 0, len(events), fields_read or FieldsRead())


STRAIGHT: dict[str, dict[str, Any]] = {
    "insert": {**HEAD, "fullDocument": NESTED, "ns": NS, "documentKey": KEY},
    "delete": {**HEAD, **WALL, "ns": NS, "documentKey": KEY},
    "update": {**HEAD, **WALL, "ns": NS, "documentKey": KEY, "updateDescription": {"updatedFields": NESTED}},
    "expanded": {**HEAD, "collectionUUID": Binary(bytes(16), 4), **WALL, "ns": NS, "documentKey": KEY},
    "in a transaction": in_transaction(**HEAD, **WALL, ns=NS, documentKey=KEY),
}
REARRANGED: dict[str, dict[str, Any]] = {
    "the looked-up document is gone": {**HEAD, "fullDocument": None, "ns": NS, "documentKey": KEY},
    "key first": {"documentKey": KEY, **HEAD, "ns": NS},
    "more fields": {**HEAD, "updateDescription": NESTED, "documentKey": KEY, "more": [NESTED], "ns": NS},
}


def test_events_in_the_order_of_mongodb_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(event_keys, "_searched")
    assert set(keys(*STRAIGHT.values())) == {ordered(NS) + b"\x03documentKey\x00" + ordered(KEY)}


@over("event", REARRANGED.values())
def test_an_event_in_another_order_has_the_same_key(event: dict[str, Any]) -> None:
    assert keys(event) == keys(STRAIGHT["delete"])


def test_equal_keys_of_two_collections_differ() -> None:
    other = {**STRAIGHT["delete"], "ns": {"db": "shop", "coll": "customers"}}
    assert len({*keys(STRAIGHT["delete"], other)}) == 2


def test_a_pipeline_that_drops_the_collection_leaves_the_key() -> None:
    assert keys({**HEAD, "documentKey": KEY}) == [b"\x03documentKey\x00" + ordered(KEY)]


@over(
    "changed",
    [{}, {"documentKey": [KEY]}, {"documentKey": "text"}],
)
def test_events_without_a_key(changed: dict[str, Any]) -> None:
    assert keys(STRAIGHT["delete"], {**HEAD, "ns": NS, **changed})[1:] == [None]


@over("last", [{"documentKey": KEY, "ns": NS}, {"ns": NS, "documentKey": KEY}])
def test_of_each_event_256_fields_are_searched(last: dict[str, Any]) -> None:
    def after(fields: int) -> dict[str, Any]:
        return {str(n): None for n in range(fields - len(last) + 1)} | last

    found, too_far_back = after(255), after(256)
    (key,) = keys(found)
    assert key is not None
    # Also among others: the key of an event must not depend on the events that are read with it.
    assert keys(*[found, too_far_back] * 100) == [key, None] * 100


def of(**document_key: Any) -> bytes | None:
    return keys({**HEAD, "ns": NS, "documentKey": document_key})[0]


EQUAL: list[list[Any]] = [
    [1, Int64(1), 1.0, Decimal128("1"), Decimal128("1.000"), Decimal128("10E-1")],
    [Decimal128.from_bid(b"\xff" * 14 + b"\x41\x30"), 0, -0.0, Int64(0), Decimal128("0E+6000"), Decimal128("-0E-6000")],
    [-3, -3.0],
    [1 << 40, float(1 << 40), Decimal128("1099511627776")],
    [Int64(-(1 << 63)), -(2.0**63)],
    [2.0**63, Decimal128("9223372036854775808")],
    [0.5, Decimal128("0.50")],
    [0.1],
    [Decimal128("0.1"), Decimal128("0.10")],
    [Decimal128("1E+6000"), Decimal128("10E+5999")],
    [Decimal128("1E-6100")],
    [float("nan"), -float("nan"), Decimal128("NaN"), Decimal128("-NaN"), Decimal128("sNaN")],
    [float("inf"), Decimal128("Infinity")],
    [float("-inf"), Decimal128("-Infinity")],
    [{"a": 1, "b": [2.0, "c"]}, {"a": 1.0, "b": [Int64(2), "c"]}],
    [{"a": 1}],
    [{"a": {"b": 1}}],
    [{"a": {}, "b": 1}],
    ["1", "1"],
    [True],
]


def test_what_is_equal_for_mongodb_has_one_key() -> None:
    found = [{of(_id=value) for value in equal} for equal in EQUAL]
    assert [len(each) for each in found] == [1] * len(EQUAL)
    assert len(set().union(*found)) == len(EQUAL)


def test_decimals_have_one_key_if_they_are_equal_and_as_few_as_they_are_different() -> None:
    choose, values = random.Random(0), list[Decimal128]()
    for _ in range(3_000):
        bits, twos, fives = (
            choose.randrange(1, 1 << choose.randint(1, 53)),
            choose.randint(0, 60),
            choose.randint(0, 26),
        )
        coefficient = choose.choice([bits, bits << twos, bits * 5**fives, 10**twos]) % 10**34
        exponent = choose.choice([choose.randint(-30, 30), choose.randint(-6176, 6111)])
        exact = Decimal((choose.getrandbits(1), Decimal(coefficient).as_tuple().digits, exponent))
        values.append(Decimal128(exact))
        for zeros in range(min(3, 34 - len(str(coefficient)))):
            if exponent - zeros >= -6176:
                values.append(Decimal128.from_bid(_bid(exact.is_signed(), coefficient * 10**zeros, exponent - zeros)))
    by_value, by_key = defaultdict[Decimal, set[Any]](set), defaultdict[Any, set[Decimal]](set)
    for value in values:
        exact, key = value.to_decimal(), of(_id=value)
        by_value[exact].add(key)
        by_key[key].add(exact)
        for double in (float(exact), float(exact).__floor__() if abs(exact) < 2**63 else 0):
            if exact == Decimal(double):
                assert key == of(_id=double)
    assert {len(each) for each in (*by_value.values(), *by_key.values())} == {1}


def _bid(negative: bool, coefficient: int, exponent: int) -> bytes:
    return (negative << 127 | (exponent + 6176) << 113 | coefficient).to_bytes(16, "little")


@over("value", ["1.5", "1.234567890123456789012345678901234E-300", "9.99E+6000", "NaN", "1E-6176"])
def test_a_decimal_takes_few_calls(value: str) -> None:
    """An `_id` may have hundreds of them."""
    data, calls = ordered({**HEAD, "ns": NS, "documentKey": {"_id": {"a": [Decimal128(value)] * 100}}}), list[str]()
    rendition = Rendition(data, document_offsets(data))
    sys.setprofile(lambda _frame, event, _: calls.append(event) if "call" in event else None)
    keys_of(rendition, 0, 1, FieldsRead())
    sys.setprofile(None)
    assert len(calls) < 100 * 20


@over("count, fields", [(0, 2), (100, 102), (254, 256), (10_000, 256)])
def test_the_fields_that_are_read_for_a_key_are_counted(count: int, fields: int) -> None:
    many, in_the_key, before_it = dict.fromkeys(map(str, range(count))), FieldsRead(), FieldsRead()
    keys({**HEAD, "ns": NS, "documentKey": {"_id": {"a": many}}}, fields_read=in_the_key)
    keys({**many, "ns": NS, "documentKey": {"_id": 1.0}}, fields_read=before_it)
    assert (in_the_key.count, before_it.count) == (fields, fields)


def test_a_decimal_counts_as_three_fields() -> None:
    fields_read = FieldsRead()
    keys({**HEAD, "ns": NS, "documentKey": {"_id": {"a": [Decimal128("1.5")] * 100}}}, fields_read=fields_read)
    assert fields_read.count == 302


@over("value", ["text", {"a": "text"}])
def test_a_symbol_is_equal_to_a_string(value: Any) -> None:
    data = ordered({**HEAD, "ns": NS, "documentKey": {"_id": value}})
    text = b"\x05\x00\x00\x00text\x00"
    before, name, after = data.rpartition((b"a" if isinstance(value, dict) else b"_id") + b"\x00" + text)
    symbol = before[:-1] + b"\x0e" + name + after
    assert keys_of(Rendition(symbol, document_offsets(symbol)), 0, 1, FieldsRead()) == [of(_id=value)]


@over("value", [1, 1.0, "text", ObjectId(bytes(12)), {"a": 1.0}])
def test_the_shard_key_is_no_part_of_the_key(value: Any) -> None:
    assert of(_id=value) == of(region="eu", _id=value) == of(region=2, _id=value, more=[1]) != of(region="eu")


def test_a_document_of_many_fields_is_compared_by_its_bytes() -> None:
    many = {str(n): 1 for n in range(300)}
    assert of(_id=many) == of(_id=dict(many)) != of(_id={**many, "0": 1.0})


def test_of_a_long_key_a_digest_is_kept() -> None:
    def event(text: str) -> dict[str, Any]:
        return {**STRAIGHT["delete"], "documentKey": {"_id": text}}

    megabyte = "x" * (1 << 20)
    one, same, other = keys(event(megabyte), {**event(megabyte), "ns": NS}, event(megabyte + "y"))
    assert one == same != other
    assert one is not None
    assert len(one) <= KEY_BYTES_MAX
    far = {"db": "d" * 60, "coll": "c" * 100}
    numbers = keys(*[{**STRAIGHT["delete"], "ns": far, "documentKey": {"_id": n}} for n in (1, 1.0, 2)])
    assert numbers[0] == numbers[1] != numbers[2]
    assert {len(each or b"") for each in numbers} == {32}
    moved = {"documentKey": {"_id": megabyte}, **HEAD, "ns": NS}
    assert keys(moved) == [one]
