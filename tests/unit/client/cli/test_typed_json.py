"""Extended JSON that people type, and that commands print."""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import bson
import pytest
from bson import Binary, Code, DatetimeMS, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument

import feedmux
from feedmux import json_writer
from feedmux.cli import subscriptions, typed_json
from feedmux.cli.event_output import EventOutput
from feedmux.cli.feed_arguments import place_of
from feedmux.cli.join import _MemberOutput
from feedmux.cli.typed_json import parse, shown
from feedmux.extended_json import unwrapped
from feedmux_server.core.feeds.query_json import parse_query
from tests.tables import over
from tests.unit.client.cli.test_event_output import Shown
from tests.unit.client.cli.test_subscriptions import STORED

OID = "0123456789abcdef01234567"
UTF_8 = bson.encode({"a": "xyz"}).replace(b"y", b"\xff")
"""A text that is not UTF-8."""
TWICE = b"\x13\x00\x00\x00\x10a\x00\x01\x00\x00\x00\x10a\x00\x02\x00\x00\x00\x00"
SYMBOL = b"\x0e\x00\x00\x00\x0ea\x00\x02\x00\x00\x00s\x00\x00"
OLD_BINARY = bson.encode({"a": Binary(b"xy", 128)}).replace(b"\x80", b"\2")
"""Without its second length: MongoDB takes it, and pymongo does not."""


class Raw:
    def __init__(self, raw: bytes) -> None:
        self.raw = raw


@over(
    ("event", "text"),
    [
        (UTF_8, '{"a": "x\ufffdz"}'),
        (TWICE, '{"a": 1, "a": 2}'),
        (SYMBOL, '{"a": {"$symbol": "s"}}'),
        (bson.encode({"a": Int64(1), "b": 2.0}), '{"a": 1, "b": 2.0}'),
    ],
)
def test_what_is_printed_is_what_is_stored(event: bytes, text: str) -> None:
    assert json.dumps(shown(event), ensure_ascii=False) == text


@over("event", [UTF_8, TWICE, SYMBOL, OLD_BINARY, bson.encode({"a": [DatetimeMS(1 << 60), {"b": Int64(1)}]})])
def test_a_member_prints_an_event_as_a_session_does(event: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = argparse.Namespace(raw=False, json=False, command_line=None)
    printed = _MemberOutput(arguments).encode(cast(feedmux.Event, Raw(event)))
    assert printed == json_writer.event_json(event) + b"\n"
    with monkeypatch.context() as terminal:
        terminal.setattr(sys, "stdout", Shown())
        people = EventOutput(arguments)
    assert people.encode(cast(feedmux.Event, Raw(event))).endswith(b"\n"), "for people"


STAGES: list[Mapping[str, Any]] = [
    {"$match": {"fullDocument.owner": {"$ne": ObjectId(OID)}, "fullDocument.n": Int64(5), "fullDocument.i": 5}},
    {"$match": {"fullDocument.at": {"$gt": Timestamp(1, 2), "$lt": DatetimeMS(10**15)}}},
    {"$match": {"fullDocument.x": {"$in": [float("nan"), float("inf"), -0.0, Decimal128("1.0"), MinKey(), MaxKey()]}}},
    {"$match": {"fullDocument.y": {"$in": [Regex("^a", "i"), Binary(b"x", 5), Code("f"), DBRef("c", 5), None, True]}}},
]


def test_the_pipeline_of_a_subscription_can_be_typed_again() -> None:
    for stages in (STAGES, [RawBSONDocument(bson.encode(each)) for each in STAGES[:1]]):
        feed = feedmux.Feed(
            "shop", "orders", pipeline=stages, comment=0, collation={"locale": "de", "strength": Int64(2)}
        )
        printed = json.loads(json.dumps(subscriptions.as_json(replace(STORED, feed=feed)), allow_nan=False))["feed"]
        typed = parse_query(json.dumps(printed["pipeline"]), "pipeline")
        assert bson.encode({"": typed}) == bson.encode({"": stages})
        assert printed["comment"] == 0
        assert printed["collation"] == {"locale": "de", "strength": {"$numberLong": "2"}}


@over(
    ("text", "value"),
    [
        ('{"_id": {"$numberLong": "5"}}', {"_id": Int64(5)}),
        (
            '{"$uuid": "00112233-4455-6677-8899-aabbccddeeff"}',
            Binary(bytes.fromhex("00112233445566778899aabbccddeeff"), 4),
        ),
        ('{"_id": {"$ref": "c", "$id": 5}}', {"_id": {"$ref": "c", "$id": 5}}),
        ('[{"$date": "2026-11-29T00:00:00Z"}]', [DatetimeMS(1795910400000)]),
    ],
)
def test_what_is_typed(text: str, value: object) -> None:
    assert parse(text) == value
    assert type(parse(text)) is type(value)


@over(
    ("text", "words"),
    [
        ('{"_id": 5, "_id": 6}', "twice"),
        ('{"_id": {"a": 1, "a": 2}}', "twice"),
        ('{"_id": {"$regex": "^a", "$ne": 1}}', r"\$regex"),
        ('{"$binary": "AA==", "$type": "00"}', r"\$binary"),
        ('{"$undefined": true, "x": 1}', r"\$undefined"),
        ('{"$date": 5}', r"\$date"),
        ("NaN", "numberDouble"),
        (str(1 << 63), "BSON"),
        ("{", "not JSON"),
        ('{"$uuid": "x"}', "UUID"),
        ('{"_id": {"$uuid": 5}}', r"\$uuid"),
    ],
)
def test_what_is_typed_is_not_taken_for_something_else(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


def test_depth_costs_no_more_than_length() -> None:
    visits = Counter[str]()

    def visited(given: dict[str, Any]) -> Any:
        visits.update(list(given))
        return unwrapped(given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typed_json, "unwrapped", visited)
        parse('{"a":' * 100 + "1" + "}" * 100)
    assert visits == {"a": 100}


def test_a_resume_token_in_which_a_name_comes_twice() -> None:
    assert place_of('{"_data": "82"}') == {"_data": "82"}
    with pytest.raises(argparse.ArgumentTypeError, match="twice"):
        place_of('{"_data": "82", "_data": "83"}')


def test_the_client_alone_has_no_orjson() -> None:
    code = "import sys; sys.modules['orjson'] = None; from feedmux.json_writer import event_json as e; print(e(%r))"
    event = bson.encode({"a": [1, Int64(2), DatetimeMS(0)]})
    done = subprocess.run([sys.executable, "-c", code % event], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(json_writer.event_json(event))
