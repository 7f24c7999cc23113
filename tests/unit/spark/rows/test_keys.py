"""`document_key` as BINARY: keys that are equal for MongoDB have equal bytes."""

from typing import Any

import bson
from bson import Binary, Decimal128, Int64, ObjectId
from bson.raw_bson import RawBSONDocument

from feedmux_spark.rows import default_schema, row_maker
from tests.unit.core.events.test_event_keys import EQUAL
from tests.unit.spark.events import event, stream


def keys(*document_keys: Any) -> list[bytes]:
    events = [event(number, documentKey=key) for number, key in enumerate(document_keys)]
    (batch,) = row_maker("envelope", default_schema("envelope"), "fail").record_batches(stream(*events))
    batch.validate(full=True)
    found: list[bytes] = batch["document_key"].to_pylist()
    return found


def test_what_is_equal_for_mongodb_has_equal_bytes() -> None:
    found = iter(keys(*({"_id": each, "shard": "x"} for equal in EQUAL for each in equal)))
    by_value = [{next(found) for _ in equal} for equal in EQUAL]
    assert [len(each) for each in by_value] == [1] * len(EQUAL)
    assert len(set().union(*by_value)) == len(EQUAL)


def test_a_symbol_is_a_string_and_the_shard_key_has_numbers_too() -> None:
    symbol = RawBSONDocument(bson.encode({"_id": "1"}).replace(b"\x02_id", b"\x0e_id"))
    shards = {"shard": 5.0, "_id": "1"}, {"shard": Int64(5), "_id": "1"}, {"shard": 5, "_id": "1"}
    of_symbol, *of_shards = keys(symbol, *shards)
    assert of_symbol == bson.encode({"_id": "1"})
    assert bson.decode(of_shards[0]) == shards[2]
    assert len({*of_shards}) == 1


def test_other_keys_stay_as_they_are() -> None:
    others = [1, "a", ObjectId(), Binary(b"b", 128), True, 1 << 40, 2.5, {"a": [1, {}]}, Decimal128("0.1")]
    assert keys(*({"_id": each} for each in others)) == [bson.encode({"_id": each}) for each in others]
