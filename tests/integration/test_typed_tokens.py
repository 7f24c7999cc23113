"""Resume tokens with type bits (64-bit integers, doubles, decimals as `_id`) come back bit for bit, or are refused."""

from typing import Any

import bson
import pytest
from bson import Binary, Decimal128, Int64
from bson.raw_bson import RawBSONDocument

from feedmux.v1 import change_feed_pb2 as wire
from tests.documents import Documents
from tests.integration.wire import LATEST, Api, at, feed, refused

IDS = [Int64(1 << 40), 1.5, Decimal128("1.10"), Int64(3), 2.0]


def token_of(event: Any) -> bytes:
    """As it stands in the event."""
    raw = RawBSONDocument(event.data)["_id"].raw
    assert isinstance(raw, bytes)
    return raw


def broken(token: bytes) -> dict[str, bytes]:
    """What clients have made of a token, or could."""
    document = bson.decode(token)
    data, bits = document["_data"], document["_typeBits"]
    as_json = {"$binary": {"base64": "QA==", "subType": "00"}}
    return {
        "through JSON": bson.encode({"_data": data, "_typeBits": as_json}),
        "another field": bson.encode({**document, "more": 1}),
        "bits as text": bson.encode({"_data": data, "_typeBits": bits.hex()}),
        "bits of another subtype": bson.encode({"_data": data, "_typeBits": Binary(bits, 5)}),
        "data as bytes": bson.encode({"_data": data.encode(), "_typeBits": bits}),
        "bits alone": bson.encode({"_typeBits": bits}),
        "the data twice": twice(data, bits),
    }


def twice(data: str, bits: bytes) -> bytes:
    """Two fields of one name, of which readers take one or the other."""
    first, second = bson.encode({"_data": data})[4:-1], bson.encode({"_data": data, "_typeBits": bits})[4:]
    return (len(first) + len(second) + 4).to_bytes(4, "little") + first + second


async def events_of(api: Api, database: Documents) -> tuple[Any, list[Any]]:
    """A session that has them in its ring."""
    receiver = api.watch(feed(database.name, "c"), LATEST)
    await receiver.opened()
    database.c.insert_many([{"_id": each, "n": n} for n, each in enumerate(IDS)])
    return receiver, await receiver.take(len(IDS))


@pytest.mark.parametrize("way", ["resume_after", "start_after", "last_acked"])
async def test_what_is_no_token_is_refused_also_where_a_ring_has_the_place(
    api: Api, database: Documents, name: str, way: str
) -> None:
    wanted = feed(database.name, "c")
    receiver, events = await events_of(api, database)
    await api.create(name, wanted, at(resume_after=token_of(events[0])))
    epoch = (await api.get(name)).epoch
    for what, bad in broken(token_of(events[2])).items():
        if way == "last_acked":
            session = await api.session(name, last_acked=wire.LastAcked(epoch=epoch + 1, resume_token=bad))
            outcome = await refused(session.opened())
        else:
            outcome = await refused(api.watch(wanted, at(**{way: bad})).opened())
        assert outcome.reason in ("POSITION_INVALID", "BSON_INVALID"), what
    again = await api.open(name)
    assert await again.numbers(4) == [1, 2, 3, 4]
    again.cancel()
    receiver.cancel()
