"""Codec options: what pymongo makes of the events' bytes, feedmux makes of them."""

import uuid
from collections import OrderedDict
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import bson
import pytest
from bson.binary import Binary, UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion, TypeDecoder, TypeRegistry
from bson.datetime_ms import DatetimeMS
from bson.decimal128 import Decimal128
from bson.raw_bson import RawBSONDocument
from bson.son import SON

import feedmux
from tests.conformance.pymongo_support import ASYNC_FEEDMUX, FEEDMUX, Lockstep, Site, shape
from tests.conformance.statements import PYMONGO as DOCUMENT
from tests.conformance.statements import shows

FAR = 10**16
"""Milliseconds that datetime cannot hold."""


class Record(dict[str, Any]):
    """A user-defined document class."""


class Cents(TypeDecoder):
    """Decimal128 as Decimal."""

    bson_type = Decimal128

    def transform_bson(self, value: Any) -> Any:
        return value.to_decimal()


OPTIONS: dict[str, CodecOptions[Any]] = {
    "default": CodecOptions(),
    "tz_aware": CodecOptions(tz_aware=True),
    "tzinfo": CodecOptions(tz_aware=True, tzinfo=timezone(timedelta(hours=2))),
    "OrderedDict": CodecOptions(document_class=OrderedDict),
    "SON": CodecOptions(document_class=SON),
    "own class": CodecOptions(document_class=Record),
    "RawBSONDocument": CodecOptions(document_class=RawBSONDocument),
    "uuid standard": CodecOptions(uuid_representation=UuidRepresentation.STANDARD),
    "uuid legacy": CodecOptions(uuid_representation=UuidRepresentation.PYTHON_LEGACY),
    "custom decoder": CodecOptions(type_registry=TypeRegistry([Cents()])),
    "custom decoder and class": CodecOptions(type_registry=TypeRegistry([Cents()]), document_class=Record),
    "datetime ms": CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS),
    "datetime auto": CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_AUTO),
    "datetime clamp": CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_CLAMP),
    "unicode replace": CodecOptions(unicode_decode_error_handler="replace"),
    "unicode ignore": CodecOptions(unicode_decode_error_handler="ignore"),
}


def plain() -> dict[str, Any]:
    return {
        "at": datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC),
        "key": Binary.from_uuid(uuid.UUID(int=7)),
        "old": Binary.from_uuid(uuid.UUID(int=8), UuidRepresentation.PYTHON_LEGACY),
        "price": Decimal128("1.50"),
        "deep": {"list": [{"price": Decimal128("2")}, bson.Int64(5), 5, 5.0, None, True, b"x"]},
        "long": bson.Int64(2**40),
        "code": bson.Code("f()", {"a": 1}),
        "regex": bson.Regex("a.*", "i"),
        "min": bson.MinKey(),
        "ref": bson.DBRef("c", 5),
        "näme": "straße 🙂",
    }


def bad_text() -> RawBSONDocument:
    """A document whose string is not UTF-8."""
    return RawBSONDocument(bson.encode({"_id": 1, "text": "abcd"}).replace(b"abcd", b"a\xff\xfed"))


@shows(DOCUMENT, "Codec options", "tz_aware, tzinfo, document classes, UUIDs, custom types: equal documents and tokens")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_codec_options(both: Site, shared: str, options: CodecOptions[Any]) -> None:
    collection = await both.collection(shared, "c", codec_options=options)
    streams = await collection.make(lambda each: each.watch(full_document="updateLookup"))
    kinds = await streams.each(lambda each: type(each.resume_token))
    assert len(set(kinds.values())) == 1, kinds
    written = both.mongo[shared]["c"]
    written.insert_many([plain(), {"n": 1}])
    written.update_one({"n": 1}, {"$set": {"a": {"b": Decimal128("3")}}})
    for _ in range(3):
        event = await streams.same(lambda each: each.next())
        await streams.tokens(event)
        kinds = await streams.each(lambda each: type(each.resume_token))
        assert len(set(kinds.values())) == 1, kinds


@shows(DOCUMENT, "Codec options", "a token of any document class, also raw, resumes")
async def test_raw_tokens_resume(both: Site, shared: str) -> None:
    collection = await both.collection(shared, "c", codec_options=OPTIONS["RawBSONDocument"])
    streams = await collection.make(lambda each: each.watch())
    both.mongo[shared]["c"].insert_many([{"n": 1}, {"n": 2}])
    first = await streams.same(lambda each: each.next())
    again = await collection.make(lambda each: each.watch(resume_after=first["_id"]))
    second = await again.same(lambda each: each.next())
    assert second["fullDocument"]["n"] == 2


@shows(
    DOCUMENT,
    "Codec options",
    "what they cannot decode raises InvalidBSON and ends the stream before it",
)
@pytest.mark.parametrize(
    ("bad", "patient"),
    [({"_id": 1, "at": DatetimeMS(FAR)}, "datetime auto"), (bad_text(), "unicode replace")],
    ids=["far date", "no UTF-8"],
)
async def test_what_cannot_be_decoded(both: Site, shared: str, bad: Any, patient: str) -> None:
    collection = await both.collection(shared, "c")
    streams = await collection.make(lambda each: each.watch())
    written = both.mongo[shared]["c"]
    written.insert_one({"n": 1})
    good = await streams.same(lambda each: each.next())
    written.insert_one(bad)
    written.insert_one({"n": 2})
    raised = await streams.refused(lambda each: each.next(), words=False)
    assert raised.kind == "InvalidBSON"
    assert await streams.same(lambda each: each.alive) is False
    assert await streams.same(lambda each: each.try_next()) is None
    assert (await streams.refused(lambda each: each.next())).kind == "StopIteration"
    await streams.tokens(good)
    chosen = await collection.make(lambda each: each.with_options(codec_options=OPTIONS[patient]))
    again = await chosen.make(lambda each: each.watch(resume_after=good["_id"]))
    assert (await again.same(lambda each: each.next()))["fullDocument"]["_id"] == 1
    assert (await again.same(lambda each: each.next()))["fullDocument"]["n"] == 2


@shows(DOCUMENT, "Codec options", "those of the client reach its databases and collections")
async def test_codec_options_of_a_client(both: Site, shared: str) -> None:
    options: CodecOptions[Any] = CodecOptions(tz_aware=True, document_class=Record)
    sides = {
        FEEDMUX: feedmux.Client(both.address, codec_options=options),
        ASYNC_FEEDMUX: feedmux.AsyncClient(both.address, codec_options=options),
    }
    clients = Lockstep(sides, both.clients._made)
    both.clients._made.append(clients)
    streams = await clients.make(lambda client: client[shared]["c"].watch())
    both.mongo[shared]["c"].insert_one(plain())
    expected = bson.decode(bson.encode(plain()), options)
    for event in (await streams.each(lambda each: each.next())).values():
        assert type(event) is Record
        found = {key: value for key, value in event["fullDocument"].items() if key != "_id"}
        assert shape(found) == shape(dict(expected))
