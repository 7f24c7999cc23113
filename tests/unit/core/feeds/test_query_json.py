"""A query as JSON is the same as the query in BSON: operators stay as written, and only exact forms are values."""

import json
import math
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import (
    Binary,
    Code,
    DatetimeMS,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
    json_util,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmux_server.core.feeds.former_json import changed_conditions
from feedmux_server.core.feeds.query_json import QueryInvalid, parse_query
from tests.tables import over
from tests.unit.core.feeds.queries import CONDITIONS, EXPRESSIONS, OBJECTS, PAIRS, QUERIES

DAY = "2026-11-28T05:30:00"
MS = 1_795_843_800_000
OID = "65f000000000000000000001"
UUID = "12345678-1234-5678-1234-567812345678"


def parsed(text: str) -> bytes:
    return bson.encode({"q": parse_query(text, "q")})


def test_operators_stay_as_they_are_written() -> None:
    pairs = [{"v": condition} for conditions in PAIRS.values() for condition in conditions]
    assert len(pairs) > len(CONDITIONS) ** 2 * 0.9
    for query in (*pairs, *QUERIES, *EXPRESSIONS, *OBJECTS):
        assert parsed(json.dumps(query)) == bson.encode({"q": query}), query


@over(
    ("text", "value"),
    [
        (f'{{"$oid": "{OID}"}}', ObjectId(OID)),
        (f'{{"$oid": "{OID.upper()}"}}', ObjectId(OID)),
        (f'{{"$date": "{DAY}Z"}}', DatetimeMS(MS)),
        (f'{{"$date": "{DAY}.1Z"}}', DatetimeMS(MS + 100)),
        (f'{{"$date": "{DAY}.123000Z"}}', DatetimeMS(MS + 123)),
        (f'{{"$date": "{DAY}.123000000-02:30"}}', DatetimeMS(MS + 123 + 9_000_000)),
        (f'{{"$date": "{DAY}+0100"}}', DatetimeMS(MS - 3_600_000)),
        ('{"$date": "0001-01-01T00:00:00+01:00"}', DatetimeMS(-62_135_600_400_000)),
        ('{"$date": "9999-12-31T23:59:59.999-01:00"}', DatetimeMS(253_402_304_399_999)),
        ('{"$date": {"$numberLong": "-1"}}', DatetimeMS(-1)),
        ('{"$date": {"$numberLong": "9223372036854775807"}}', DatetimeMS(2**63 - 1)),
        ('{"$numberInt": "-2147483648"}', -(2**31)),
        ('{"$numberLong": "5"}', Int64(5)),
        ('{"$numberLong": "-9223372036854775808"}', Int64(-(2**63))),
        ('{"$numberDouble": "5"}', 5.0),
        ('{"$numberDouble": "-1.5E-3"}', -0.0015),
        ('{"$numberDouble": "-Infinity"}', -math.inf),
        ('{"$numberDouble": "NaN"}', math.nan),
        ('{"$numberDecimal": "1.10"}', Decimal128("1.10")),
        ('{"$numberDecimal": "-Infinity"}', Decimal128("-Infinity")),
        (f'{{"$uuid": "{UUID}"}}', Binary(bytes.fromhex(UUID.replace("-", "")), 4)),
        ('{"$binary": {"base64": "QUI=", "subType": "00"}}', b"AB"),
        ('{"$binary": {"subType": "2", "base64": "QUI="}}', Binary(b"AB", 2)),
        ('{"$binary": {"base64": "", "subType": "FF"}}', Binary(b"", 255)),
        ('{"$timestamp": {"t": 4294967295, "i": 0}}', Timestamp(2**32 - 1, 0)),
        ('{"$regularExpression": {"pattern": "^a", "options": "is"}}', Regex("^a", "is")),
        ('{"$regularExpression": {"options": "", "pattern": ""}}', Regex("")),
        ('{"$minKey": 1}', MinKey()),
        ('{"$maxKey": 1}', MaxKey()),
        ('{"$code": "x"}', Code("x")),
        (f'{{"$scope": {{"a": {{"$oid": "{OID}"}}}}, "$code": "x"}}', Code("x", {"a": ObjectId(OID)})),
        ("2147483647", 2**31 - 1),
        ("2147483648", Int64(2**31)),
        ("-9223372036854775808", Int64(-(2**63))),
        ("5.0", 5.0),
        ("1e2", 100.0),
        ('"\\ud83d\\ude00 \\u0000"', "😀 \0"),
        ("[true, false, null]", [True, False, None]),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert parsed(text) == bson.encode({"q": value})
    within = f'[{{"$match": {{"a": {{"$in": [{text}]}}}}}}]'
    assert parsed(within) == bson.encode({"q": [{"$match": {"a": {"$in": [value]}}}]})


@over(
    "text",
    [
        *('{"$oid": "abc"}', '{"$oid": 5}', f'{{"$oid": "{OID}", "a": 1}}', f'{{"$ne": 1, "$oid": "{OID}"}}'),
        *('{"$oid": null}', '{"$oid": {}}', '{"$oid": []}', f'{{"$oid": "{OID}\\n"}}', '{"$oid": {"$oid": "x"}}'),
        *('{"$date": 5}', '{"$date": {"$numberInt": "5"}}', '{"$date": "2026-11-28"}', f'{{"$date": "{DAY}"}}'),
        *(f'{{"$date": "{DAY}.1234Z"}}', '{"$date": "2026-02-29T00:00:00Z"}', f'{{"$date": "{DAY}+25:00"}}'),
        *('{"$date": "0000-01-01T00:00:00Z"}', f'{{"$date": "{DAY} Z"}}', '{"$date": "٢٠٢٦-11-28T05:30:00Z"}'),
        *('{"$numberInt": 5}', '{"$numberInt": "2147483648"}', '{"$numberInt": "1_0"}', '{"$numberInt": " 1"}'),
        *('{"$numberLong": 5}', '{"$numberLong": "9223372036854775808"}', '{"$numberLong": "1.0"}'),
        *('{"$numberDouble": 1.5}', '{"$numberDouble": "1e999"}', '{"$numberDouble": "inf"}', '{"$numberDouble": ""}'),
        *('{"$numberDecimal": 1}', '{"$numberDecimal": "1E9999"}', f'{{"$numberDecimal": "{"1" * 35}"}}'),
        *('{"$uuid": "1234"}', f'{{"$uuid": "{{{UUID}}}"}}', f'{{"$uuid": "{UUID.replace("-", "")}"}}'),
        *('{"$binary": "QUI="}', '{"$binary": "QUI=", "$type": "00"}', '{"$binary": {"base64": "QUI="}}'),
        *(f'{{"$binary": {{"base64": {data}, "subType": "00"}}}}' for data in ('"QUI"', '"Q?=="', '"é"', "5")),
        *(f'{{"$binary": {{"base64": "", "subType": {kind}}}}}' for kind in ('"100"', '""', "0", '"-1"')),
        '{"$binary": {"base64": "", "subType": "00", "a": 1}}',
        '{"$binary": {"base64": "", "subType": "00"}, "$ne": 1}',
        *(f'{{"$timestamp": {{"t": {t}, "i": 1}}}}' for t in ("-1", "4294967296", "true", "1.0", '"1"', "{}")),
        *('{"$timestamp": {"t": 1}}', '{"$timestamp": 5}', '{"$timestamp": {"t": {"$numberLong": "1"}, "i": 1}}'),
        *('{"$regularExpression": "a"}', '{"$regularExpression": {"pattern": "a"}}'),
        *(f'{{"$regularExpression": {{"pattern": "a", "options": "{bad}"}}}}' for bad in ("g", "i m", "\\u0000")),
        '{"$regularExpression": {"pattern": "a\\u0000", "options": ""}}',
        '{"$regularExpression": {"pattern": "a", "options": "i"}, "$ne": "abc"}',
        *('{"$minKey": true}', '{"$maxKey": 2}', '{"$minKey": 1.0}', '{"$minKey": 1, "$maxKey": 1}'),
        *('{"$code": 5}', '{"$code": "x", "$scope": 5}', '{"$code": "x", "a": 1}'),
        *('{"$code": "x", "$scope": {"$minKey": 1}}', '{"$code": "x", "$scope": {"$code": 1}}'),
        *('{"$symbol": "a"}', f'{{"$dbPointer": {{"$ref": "c", "$id": {{"$oid": "{OID}"}}}}}}', '{"$undefined": true}'),
    ],
)  # fmt: skip
def test_a_value_that_is_not_in_its_form_is_named(text: str) -> None:
    with pytest.raises(QueryInvalid, match=r"^\$\w+ marks (a value of|extended JSON, whose form is {)") as caught:
        parse_query(f'[{{"$match": {{"a.b": {{"$in": [0, {text}]}}}}}}]', "pipeline")
    assert caught.value.path[:6] == ("pipeline", "0", "$match", "a.b", "$in", "1")


@over(
    ("text", "message", "path"),
    [
        ("", "not JSON (line 1, column 1)", "q"),
        ("[1,\n]", "not JSON (line 2, column 1)", "q"),
        ("\ufeff[]", "not JSON (line 1, column 1)", "q"),
        ("{'a': 1}", "not JSON", "q"),
        ("[" * 100_000, "nested too deeply", "q"),
        ("9" * 5_000, "too many digits", "q"),
        ('{"a": 1, "b": {}, "a": 1}', "twice", "q.a"),
        ('{"a": [{"b": {"c": 1, "c": 2}}]}', "twice", "q.a.0.b.c"),
        ('{"a": {"$regex": "a", "$regex": "b"}}', "twice", "q.a.$regex"),
        ('{"__proto__": 1, "__proto__": 1}', "twice", "q.__proto__"),
        ('{"a": 1, "\\u0061": 1}', "twice", "q.a"),
        (f'{{"$oid": "{OID}", "$oid": "{OID}"}}', "twice", "q.$oid"),
        ('{"$binary": {"base64": "", "base64": "", "subType": "00"}}', "twice", "q.$binary.base64"),
        ('{"a": [0, 9223372036854775808]}', "64 bits", "q.a.1"),
        ('{"a": -9223372036854775809}', "64 bits", "q.a"),
        ('{"a": NaN}', "finite", "q.a"),
        ('{"a": -Infinity}', "finite", "q.a"),
        ('{"a": 1e999}', "finite", "q.a"),
        ('{"a": "\\ud800"}', "surrogate", "q.a"),
        ('{"a": {"b\\udfff": 1}}', "surrogate", "q.a"),
        ('{"a": {"b\\u0000": 1}}', "NUL", "q.a"),
    ],
)
def test_what_is_no_query_is_named(text: str, message: str, path: str) -> None:
    with pytest.raises(QueryInvalid) as caught:
        parse_query(text, "q")
    assert message in caught.value.message
    assert ".".join(caught.value.path) == path


def nested(depth: int) -> str:
    return '{"a":' * depth + f'{{"$oid": "{OID}"}}' + "}" * depth


def test_depth() -> None:
    """The exact bound is that of the BSON; JSON may need one more level for a value."""
    parse_query(nested(99), "q")
    for text in (nested(110), "[" * 200 + "]" * 200):
        with pytest.raises(QueryInvalid, match="more than 100 deep"):
            parse_query(text, "q")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.integers(-(2**63), 2**63 - 1).map(Int64)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.integers(-(2**63), 2**63 - 1).map(DatetimeMS)
    | st.datetimes(timezones=st.just(UTC)).map(lambda when: when.replace(microsecond=when.microsecond // 1000 * 1000))
    | st.binary(min_size=12, max_size=12).map(ObjectId)
    | st.builds(Binary, st.binary(max_size=5), st.integers(0, 255))
    | st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
    | st.builds(Regex, st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5), st.just("imsux"))
    | st.builds(Code, st.text(max_size=5))
    | st.sampled_from([MinKey(), MaxKey(), Decimal128("NaN"), Decimal128("-1.50E+3"), Decimal128("Infinity")]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "_id", "", "é"]), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=200)
@given(VALUES)
def test_every_value_as_drivers_write_it(value: Any) -> None:
    canonical = json_util.dumps(value, json_options=json_util.CANONICAL_JSON_OPTIONS)
    assert parsed(canonical) == bson.encode({"q": value})


def test_relaxed_dates_as_drivers_write_them() -> None:
    value = [datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 11, 28, 5, 30, 0, 120_000, UTC), DatetimeMS(2**60)]
    assert parsed(json_util.dumps(value, json_options=json_util.RELAXED_JSON_OPTIONS)) == bson.encode({"q": value})


@over(
    "condition",
    [
        {"$regex": "^a"},
        {"$options": "i", "$regex": "^a"},
        {"$not": {"$regex": "^a"}},
        {"$ne": "abc", "$in": ["abc"]},
        {"$regex": {"$regularExpression": {"pattern": "^a", "options": ""}}, "$ne": "abc"},
    ],
)
def test_the_same_meaning(condition: Any) -> None:
    assert changed_conditions(json.dumps([{"$match": {"$or": [{"a": 1}, {"b": condition}]}}])) == []


@over(
    ("condition", "path"),
    [
        ({"$regex": "^a", "$ne": "abc"}, ""),
        ({"$options": "i", "$nin": ["abc"], "$regex": "^a"}, ""),
        ({"$not": {"$regex": "^a", "$ne": "abc"}}, ".$not"),
        ({"$in": ["b", {"$regex": "^a"}]}, ".$in.1"),
        ({"$elemMatch": {"$regex": "^a"}}, ".$elemMatch"),
        ({"$eq": {"$regex": "^a"}}, ".$eq"),
        ({"$literal": [{"a": 1}, {"$regex": "^a"}]}, ".$literal.1"),
    ],
)
def test_another_meaning(condition: Any, path: str) -> None:
    text = json.dumps([{"$match": {"$or": [{"a": 1}, {"b": condition}]}}])
    assert changed_conditions(text) == [f"pipeline.0.$match.$or.1.b{path}"]
