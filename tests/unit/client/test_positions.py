"""Resume tokens: out of BSON and out of extended JSON they are the same bytes."""

import base64
import json
from pathlib import Path

import bson
import pytest
from bson.codec_options import CodecOptions

from feedmux.batches import JsonBatch
from feedmux.errors import ProtocolError
from feedmux.positions import FeedPosition, event_id, json_event_id
from tests.tables import over

DATA = Path(__file__).parents[3] / "clients" / "testdata"
EVENTS: list[dict[str, str]] = json.loads((DATA / "resume_tokens.json").read_text())
NO_TOKENS: list[str] = json.loads((DATA / "no_tokens.json").read_text())


@over("each", EVENTS)
def test_a_token_is_the_same_bytes_in_every_format(each: dict[str, str]) -> None:
    token = base64.b64decode(each["token"])
    assert event_id(base64.b64decode(each["event"])) == token
    for text in (each["canonical"], each["relaxed"]):
        assert json_event_id(text) == token
        assert json_event_id('{"nested":{"_id":{"_data":"00"}},' + text[1:]) == token, "_id may stand anywhere"
        assert json_event_id(json.dumps(json.loads(text), indent=2)) == token, "blanks do not count"
        event = next(iter(JsonBatch((text,), FeedPosition(), 0, CodecOptions())))
        assert event.resume_token is not None
        assert bson.encode(event.resume_token) == token, "a user may keep it as a document"


def test_the_data_has_type_bits() -> None:
    assert len({each["token"] for each in EVENTS if b"_typeBits" in base64.b64decode(each["token"])}) > 10


@over("text", NO_TOKENS)
def test_what_is_no_token_gives_none(text: str) -> None:
    assert json_event_id(text) == b""


@over(
    "types",
    ['{"$binary":{"base64":"g","subType":"00"}}', '{"$binary":{"base64":"gYA=","subType":"xx"}}', '{"$binary":"gYA="}'],
)
def test_type_bits_that_are_no_binary_give_no_token(types: str) -> None:
    assert json_event_id('{"_id":{"_data":"826B","_typeBits":' + types + "}}") == b""


def test_what_is_not_json_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError):
        JsonBatch(("{",), FeedPosition(), 0, CodecOptions()).event_key(0)
