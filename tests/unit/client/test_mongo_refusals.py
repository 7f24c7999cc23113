"""MongoDB's own refusals, made by the client. `test_pymongo_arguments.py` compares them with MongoDB."""

from collections.abc import Callable
from typing import Any

import pytest
from bson import Int64, Timestamp
from bson.codec_options import CodecOptions
from pymongo.errors import OperationFailure

from feedmux import mongo_refusals as refusals
from tests.tables import over

CODEC: CodecOptions[Any] = CodecOptions()
SECRET = "826B02F300000000142B022C0100296E5A1004"


@over(
    ("check", "code", "words"),
    [
        (lambda: refusals.check_namespace("admin", None), 73, "internal admin database"),
        (lambda: refusals.check_namespace("shop", "system.views"), 73, "internal shop.system.views collection"),
        (lambda: refusals.check_stages([{"$match": {}}, 5]), 14, "must be an object"),
        (lambda: refusals.check_stages([{}]), 40323, "exactly one field"),
        (lambda: refusals.check_stages([{"$match": {}, "$set": {}}]), 40323, "exactly one field"),
        (lambda: refusals.check_await(-1), 2, "-1 value for maxTimeMS is out of range"),
        (lambda: refusals.check_type("fullDocument", Int64(5), str, "string", CODEC), 14, "wrong type 'long'"),
        (lambda: refusals.check_not_empty("fullDocument", ""), 2, "Enumeration value ''"),
        (lambda: refusals.check_expanded("yes", CODEC), 14, "but found: string"),
        (lambda: refusals.check_token("resumeAfter", [], CODEC), 14, "wrong type 'array', expected type 'object'"),
        (lambda: refusals.check_token("resumeAfter", {}, CODEC), 40647, "_data of missing or of wrong type"),
        (lambda: refusals.check_token("resumeAfter", {"_data": ""}, CODEC), 40649, "invalid empty resume token"),
        (lambda: refusals.check_operation_time(5, CODEC), 14, "wrong type 'int', expected type 'timestamp'"),
    ],
)  # fmt: skip
def test_code_and_words(check: Callable[[], None], code: int, words: str) -> None:
    with pytest.raises(OperationFailure, match=words) as caught:
        check()
    assert caught.value.code == code


def test_what_mongodb_accepts() -> None:
    refusals.check_namespace("shop", "systems")
    refusals.check_namespace(None, None)
    refusals.check_await(2**31 - 1)
    refusals.check_expanded(0, CODEC)
    refusals.check_token("resumeAfter", {"_data": b"\x82"}, CODEC)
    refusals.check_operation_time(Timestamp(1, 1), CODEC)


def test_a_refused_token_is_not_quoted() -> None:
    with pytest.raises(OperationFailure, match="not a valid hex string") as caught:
        refusals.check_token("resumeAfter", {"_data": SECRET + "?"}, CODEC)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
