"""`feedmux dead-letters`: its arguments, and what it prints of a letter."""

import argparse
from datetime import UTC, datetime

import bson
import pytest
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

import feedmux
from feedmux.cli.dead_letters import _id, _key, as_json
from tests.tables import over

OID = "0123456789abcdef01234567"


@over(
    ("text", "key"),
    [
        ('{"_id": 5}', {"_id": 5}),
        ('{"region": "eu", "_id": "x"}', {"region": "eu", "_id": "x"}),
        ("5", {"_id": 5}),
        ('"a text"', {"_id": "a text"}),
        (f'{{"$oid": "{OID}"}}', {"_id": ObjectId(OID)}),
    ],
)
def test_a_key_is_a_document_or_the_value_of_its_id(text: str, key: object) -> None:
    assert _key(text) == key


def test_what_is_no_key_or_id() -> None:
    for text in ("{", "text", '{"$oid": 5}'):
        with pytest.raises(argparse.ArgumentTypeError, match="Extended JSON"):
            _key(text)
    with pytest.raises(argparse.ArgumentTypeError, match="dead-letters list"):
        _id("xyz")


def test_a_letter_in_json() -> None:
    moment = datetime(2026, 11, 28, tzinfo=UTC)
    letter = feedmux.DeadLetter(
        "00ff", 3, ("reason",), "w", Timestamp(5, 1), moment, moment, 9, False,
        bson.encode({"_id": ObjectId(OID)}), bson.encode({"_id": {"_data": "82"}}),
    )  # fmt: skip
    shown = as_json(letter)
    assert shown["key"] == {"_id": {"$oid": OID}}
    assert shown["event"] == {"_id": {"_data": "82"}}
    assert (shown["cluster_time"], shown["fail_time"]) == ("5:1", "2026-11-28T00:00:00Z")
