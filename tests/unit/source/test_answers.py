"""What is found in the bytes of MongoDB's answers, whatever else they contain."""

from typing import Any

import bson
import pytest
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.source.answers import CollectionInfo, documents_in, info_of, name_of
from feedmux_server.source.commands import SourceCommands
from feedmux_server.telemetry.observer import NOBODY
from tests.tables import over

ODD = {"date": DatetimeMS(10**15), "text": RawBSONDocument(b"\x0f\0\0\0\x02a\0\x03\0\0\0\xff\xfe\0\0")}


def listed(kind: str = "collection", **options: Any) -> bytes:
    """A collection with a validator that the driver would not decode, before its other options."""
    return bson.encode(
        {
            "name": "é",
            "type": kind,
            "options": {"validator": ODD, **options},
            "info": {"readOnly": False},
            "idIndex": {},
        }
    )


@over(
    "document, found",
    [
        (listed(), CollectionInfo("collection")),
        (listed("view", viewOn="a", pipeline=[ODD]), CollectionInfo("view")),
        (listed(capped=True, size=4096), CollectionInfo("collection", capped=True)),
        (listed(capped=False), CollectionInfo("collection")),
        (listed(collation={"locale": "en"}), CollectionInfo("collection", collation=True)),
        (listed(clusteredIndex={"key": {"_id": 1}, "unique": True}), CollectionInfo("collection", clustered=True)),
        (listed(clusteredIndex=True), CollectionInfo("collection", clustered=True)),
        (listed(changeStreamPreAndPostImages={"enabled": True}), CollectionInfo("collection", images=True)),
        (listed(changeStreamPreAndPostImages={"enabled": False}), CollectionInfo("collection")),
        (bson.encode({"name": "é", "type": "collection"}), CollectionInfo("collection")),
    ],
)
def test_a_description_of_a_collection(document: bytes, found: CollectionInfo) -> None:
    with pytest.raises(bson.errors.InvalidBSON):
        bson.decode(listed())
    assert (name_of(document), info_of(document)) == ("é", found)


def test_a_name_that_is_not_utf_8() -> None:
    assert name_of(bson.encode({"name": "a€", "type": "collection"}).replace("€".encode(), b"\xff\xfe\xfd")) == (
        "a\ufffd\ufffd\ufffd"
    )


def test_documents_that_follow_one_another() -> None:
    documents = [bson.encode({"a": number}) for number in range(3)]
    assert list(documents_in(b"".join(documents))) == documents
    assert list(documents_in(b"")) == []


async def test_an_answer_that_cannot_be_decoded_has_a_reason() -> None:
    async def answer() -> None:
        bson.decode(bson.encode({"secret": DatetimeMS(10**15)}))

    client: Any = None
    commands = SourceCommands("main", client, 5.0, NOBODY)
    with pytest.raises(FeedmuxError, match=r"cannot be decoded \(InvalidBSON\)") as raised:
        await commands.answer(answer())
    assert raised.value.reason is ErrorReason.SOURCE_UNAVAILABLE
    assert "year" not in raised.value.message
