"""Extended JSON decodes to what BSON decodes to."""

from typing import Any

import bson
import pytest
from bson import DBRef, Int64, ObjectId, Regex
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st

from feedmux.errors import ProtocolError
from feedmux.extended_json import decode
from feedmux.options import SESSION_CODEC
from feedmux_server.core.events.extended_json import render_events
from tests.tables import over
from tests.unit.core.events.test_extended_json import DOCUMENTS, EXACT

MILLISECONDS = CodecOptions[dict[str, Any]](datetime_conversion=DatetimeConversion.DATETIME_MS)
OID = "0123456789abcdef01234567"

OWN: list[dict[str, Any]] = [
    # What a document has itself, and what is no value's text.
    {"$regex": "^a", "$ne": "x"},
    {"$regex": "^a", "$options": "i"},
    {"$regex": "^a"},
    {"$oid": "abc"},
    {"$oid": OID[:-1]},
    {"$oid": OID.upper()},
    {"$oid": OID, "$ne": "x"},
    {"$ne": "x", "$oid": OID},
    {"$oid": None},
    {"$oid": {"$oid": "abc"}},
    {"$date": "yesterday"},
    {"$date": "2024-13-01T00:00:00Z"},
    {"$date": "2024-01-01"},
    {"$date": {"$numberLong": "x"}},
    {"$date": {"$numberLong": "9223372036854775808"}},
    {"$date": {}},
    {"$numberInt": "2147483648"},
    {"$numberInt": "x"},
    {"$numberInt": "01"},
    {"$numberInt": "-0"},
    {"$numberInt": "٣"},
    {"$numberLong": "9" * 5000},
    {"$numberDouble": "x"},
    {"$numberDouble": "nan"},
    {"$numberDouble": " 1.0"},
    {"$numberDecimal": "x"},
    {"$numberDecimal": "01"},
    {"$numberDecimal": "1" * 5000},
    {"$binary": "AA==", "$type": "00"},
    {"$binary": {"base64": "!", "subType": "00"}},
    {"$binary": {"base64": "AA==", "subType": "x"}},
    {"$binary": {"subType": "00", "base64": "AA=="}},
    {"$binary": {"base64": "AA=="}},
    {"$uuid": "12345678-1234-5678-1234-567812345678"},
    {"$timestamp": {"t": "1", "i": "2"}},
    {"$timestamp": {}},
    {"$regularExpression": {"pattern": "a"}},
    {"$regularExpression": {"pattern": "a\0", "options": ""}},
    {"$regularExpression": "a"},
    {"$code": None},
    {"$code": "f()", "$scope": "x"},
    {"$code": "f()", "x": "y"},
    {"$scope": {}},
    {"$symbol": None},
    {"$symbol": "x", "y": "z"},
    {"$undefined": False},
    {"$undefined": "x"},
    {"$minKey": "1"},
    {"$maxKey": None},
    {"$dbPointer": {"$ref": "c", "$id": "x"}},
    {"$dbPointer": {"$ref": "c", "$id": {"$oid": "abc"}}},
    {"$dbPointer": "x"},
    {"$id": "x"},
    {"$numberInt": None, "$numberLong": "x"},
]
IN_CANONICAL: list[dict[str, Any]] = [
    # In canonical JSON a number is never bare, so that these are no values.
    {"$minKey": 1},
    {"$maxKey": 1},
    {"$timestamp": {"t": 1, "i": 2}},
    {"$date": 5},
    {"$numberInt": 5},
    {"$undefined": 1},
    {"$minKey": True},
]
NAMES = st.sampled_from(
    ["$oid", "$date", "$numberInt", "$numberLong", "$binary", "$regex", "$options", "$timestamp", "t"]
)


def is_no_date(document: dict[str, Any]) -> bool:
    """Canonical JSON has the same text for a date and for this one document."""
    return [*document] != ["$date"] or not isinstance(document["$date"], Int64)


NESTED = st.recursive(
    st.sampled_from(["abc", "", "yesterday", None, 1, -1.5, Int64(5)]),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3).filter(is_no_date) | st.lists(inner, max_size=2),
    max_leaves=6,
)


def text_of(raw: bytes, canonical: bool) -> str:
    (text,) = render_events(raw, [0], canonical)
    return text.decode()


@over("canonical", [True, False])
def test_a_document_with_names_of_its_own_stays_as_it_is(canonical: bool) -> None:
    for own in OWN + (IN_CANONICAL if canonical else []):
        for value in (own, [own], {"x": {"y": own}}):
            event = {"_id": "x", "q": value}
            raw = bson.encode(event)
            decoded = decode(text_of(raw, canonical), MILLISECONDS)
            # A DBRef within is one as in BSON.
            assert repr(decoded) == repr(bson.decode(raw, MILLISECONDS)), own
            assert bson.encode(decoded) == raw, own


@given(st.dictionaries(st.sampled_from("abc"), NESTED, max_size=3))
def test_a_document_of_such_names_comes_back(document: dict[str, Any]) -> None:
    raw = bson.encode(document)
    assert bson.encode(decode(text_of(raw, canonical=True), MILLISECONDS)) == raw


@given(DOCUMENTS)
def test_canonical_text_decodes_as_bson_does(document: dict[str, Any]) -> None:
    raw = bson.encode(document)
    for options in (MILLISECONDS, SESSION_CODEC):
        assert repr(decode(text_of(raw, canonical=True), options)) == repr(bson.decode(raw, options))


def test_types_that_pymongo_does_not_have_decode_as_from_bson() -> None:
    for raw, _ in EXACT:
        if b"\x04$ref\0" not in raw:  # an array that bson.decode takes for a DBRef's collection
            assert repr(decode(text_of(raw, canonical=True), MILLISECONDS)) == repr(bson.decode(raw, MILLISECONDS))


def test_codec_options_apply() -> None:
    event = {"n": 1, "_id": {"_data": "82"}, "q": {"$ref": "c", "$id": ObjectId(OID)}, "r": Regex("a", "i")}
    text = text_of(bson.encode(event), canonical=True)
    raw = decode(text, CodecOptions(document_class=RawBSONDocument))
    assert isinstance(raw, RawBSONDocument)
    assert decode(text, MILLISECONDS)["q"] == DBRef("c", ObjectId(OID))
    moved = '{"n": {"$numberInt": "1"}, "_id": {"_data": "82"}}'
    assert list(decode(moved, MILLISECONDS)) == ["n", "_id"]
    far = text_of(bson.encode({"d": bson.DatetimeMS(2**62)}), canonical=True)
    with pytest.raises(bson.errors.InvalidBSON):
        decode(far, CodecOptions())
    assert decode(far, SESSION_CODEC) == {"d": bson.DatetimeMS(2**62)}


NO_EVENTS = [
    *("", "{", "[]", "5", "null", '{"a": 1} x', '{"a": NaN', '{"a\\u0000b": 1}', '{"a": "\\ud800"}'),
    f'{{"n": {10**30}}}',
    '{"a":' * 5000 + "1" + "}" * 5000,
]


@over("text", NO_EVENTS)
def test_any_other_text_is_an_error_that_names_the_way_out(text: str) -> None:
    with pytest.raises(ProtocolError, match="use format 'bson'"):
        decode(text, SESSION_CODEC)
