"""Bad input gets its documented status with ErrorInfo; never UNKNOWN, never a Python exception's text, nothing lost."""

import json
import struct

import bson
import grpc
import pytest
from google.protobuf import timestamp_pb2

from feedmux.v1 import feed_pb2
from tests.documents import Documents
from tests.integration.servers import OPERATOR_KEY, Here
from tests.integration.test_forged_positions import start_everywhere
from tests.integration.wire import LATEST, Api, Refused, at, feed, refusal, refused

INVALID, MISSING = "INVALID_ARGUMENT", "NOT_FOUND"
PYTHON_WORDS = ("Traceback", "Error(", "Exception", "NoneType", "object at 0x", "pymongo", "feedmux_server", ".py")


def check(outcome: Refused, code: str, reason: str) -> None:
    assert (outcome.code, outcome.reason) == (code, reason), outcome
    assert outcome.domain == "feedmux"
    assert "ErrorInfo" in outcome.details
    assert outcome.message
    assert not any(word in outcome.message for word in PYTHON_WORDS), outcome.message


def raw_pipeline(data: bytes) -> feed_pb2.Feed:
    made = feed("d", "c")
    made.pipeline.bson = data
    return made


def nested(depth: int) -> bytes:
    """A pipeline of one $match so many documents deep."""
    inner = bson.encode({})
    for _ in range(depth):
        body = b"\x03a\0" + inner + b"\0"
        inner = struct.pack("<i", len(body) + 4) + body
    # The encoder itself rejects a pipeline this deep.
    stage, flat = bson.encode({"pipeline": [{"$match": {}}]}), bson.encode({})
    grown = len(inner) - len(flat)
    at = stage.index(flat, stage.index(b"$match"))
    result = bytearray(stage[:at] + inner + stage[at + len(flat) :])
    for offset in (0, 14, 21):
        result[offset : offset + 4] = struct.pack("<i", struct.unpack_from("<i", result, offset)[0] + grown)
    return bytes(result)


GOOD = bson.encode({"pipeline": [{"$match": {"a": "é"}}]})
BAD_LENGTH = struct.pack("<i", len(GOOD) + 7) + GOOD[4:]
DEEP_JSON = '[{"$match": ' + '{"a": ' * 3000 + "1" + "}" * 3000 + "}]"

FEEDS: dict[str, tuple[feed_pb2.Feed, str, str]] = {
    # names
    "no source": (feed(source=""), INVALID, "NAME_INVALID"),
    "unknown source": (feed(source="nowhere"), MISSING, "SOURCE_NOT_FOUND"),
    "long source": (feed(source="s" * 121), INVALID, "NAME_INVALID"),
    "database with NUL": (feed("a\0b"), INVALID, "NAME_INVALID"),
    "database with a dot": (feed("a.b"), INVALID, "NAME_INVALID"),
    "database too long": (feed("d" * 64), INVALID, "NAME_INVALID"),
    "collection with NUL": (feed("d", "a\0b"), INVALID, "NAME_INVALID"),
    "collection with $": (feed("d", "a$b"), INVALID, "NAME_INVALID"),
    "collection too long": (feed("d", "c" * 255), INVALID, "NAME_INVALID"),
    "collection without database": (feed("", "c"), INVALID, "NAME_INVALID"),
    # pipelines
    "no JSON": (feed("d", "c", "[{"), INVALID, "PIPELINE_INVALID"),
    "no array": (feed("d", "c", "{}"), INVALID, "PIPELINE_INVALID"),
    "no stages": (feed("d", "c", "[1]"), INVALID, "PIPELINE_INVALID"),
    "empty stage": (feed("d", "c", "[{}]"), INVALID, "PIPELINE_INVALID"),
    "two fields": (feed("d", "c", '[{"$match": {}, "$project": {}}]'), INVALID, "PIPELINE_INVALID"),
    "51 stages": (feed("d", "c", json.dumps([{"$match": {}}] * 51)), INVALID, "PIPELINE_INVALID"),
    "65 KiB": (feed("d", "c", json.dumps([{"$match": {"a": "x" * 65 * 1024}}])), INVALID, "PIPELINE_INVALID"),
    "bad $oid": (feed("d", "c", '[{"$match": {"a": {"$oid": "zz"}}}]'), INVALID, "PIPELINE_INVALID"),
    "65-bit number": (feed("d", "c", '[{"$match": {"a": 36893488147419103232}}]'), INVALID, "PIPELINE_INVALID"),
    "deep JSON": (feed("d", "c", DEEP_JSON), INVALID, "PIPELINE_INVALID"),
    # BSON
    "BSON length": (raw_pipeline(BAD_LENGTH), INVALID, "BSON_INVALID"),
    "BSON cut": (raw_pipeline(GOOD[:-3]), INVALID, "BSON_INVALID"),
    "BSON of one byte": (raw_pipeline(b"\1"), INVALID, "BSON_INVALID"),
    "BSON UTF-8": (raw_pipeline(GOOD.replace("é".encode(), b"\xff\xfe")), INVALID, "BSON_INVALID"),
    "BSON depth": (raw_pipeline(nested(101)), INVALID, "BSON_INVALID"),
    "BSON without pipeline": (raw_pipeline(bson.encode({"x": []})), INVALID, "PIPELINE_INVALID"),
    "collation": (feed("d", "c", collation=b"junk"), INVALID, "BSON_INVALID"),
    "comment": (feed("d", "c", comment=b"junk"), INVALID, "BSON_INVALID"),
    "comment of two fields": (feed("d", "c", comment=bson.encode({"comment": 1, "x": 1})), INVALID, "MESSAGE_INVALID"),
    "comment that bson cannot decode": (
        feed("d", "c", comment=bson.encode({"comment": bson.DatetimeMS(2**62)})),
        "OK",
        "",
    ),
    # options
    "read preference": (feed("d", "c", read_preference="fastest"), INVALID, "OPTION_REFUSED"),
    "batch size": (feed("d", "c", batch_size=-1), INVALID, "MESSAGE_INVALID"),
    "await time": (feed("d", "c", max_await_time_ms=-1), INVALID, "MESSAGE_INVALID"),
}


@pytest.mark.parametrize("case", FEEDS)
async def test_feeds(api: Api, case: str) -> None:
    wanted, code, reason = FEEDS[case]
    for receiver in (api.watch(wanted), await api.session(feed=wanted)):
        if code == "OK":
            await receiver.opened()
            receiver.cancel()
        else:
            check(await refused(receiver.opened()), code, reason)


async def test_odd_values_in_a_pipeline_are_mongodbs_business(api: Api, database: Documents) -> None:
    odd = {"$in": [bson.DatetimeMS(2**62), bson.Regex("(", "i"), bson.MinKey(), bson.Code("x"), float("nan")]}
    for value in ({"$gt": bson.DatetimeMS(2**62)}, bson.Decimal128("NaN"), odd):
        wanted = feed(database.name, "c")
        wanted.pipeline.bson = bson.encode({"pipeline": [{"$match": {"fullDocument.a": value}}]})
        receiver = api.watch(wanted)
        outcome: Refused | None = None
        try:
            await receiver.opened()
        except grpc.aio.AioRpcError as error:
            outcome = refusal(error)
        if outcome is not None:
            check(outcome, INVALID, "OPTION_REFUSED")
        assert await api.streams() is not None
        receiver.cancel()


# --- Positions and starts.


@pytest.fixture
async def position(api: Api, database: Documents) -> bytes:
    receiver = api.watch(feed(database.name, "c"))
    await receiver.opened()
    database.c.insert_one({"n": 0})
    await receiver.take(1)
    receiver.cancel()
    return receiver.position


async def test_positions_of_another_place(api: Api, database: Documents, position: bytes) -> None:
    for wanted in (
        feed(database.name, "c", source="other"),
        feed(database.name, "d"),
        feed(database.name),
        feed("elsewhere", "c"),
        feed(),
    ):
        outcome = await refused(api.watch(wanted, at(position=position)).opened())
        check(outcome, INVALID, "POSITION_FOREIGN")


async def test_a_start_at_time_zero(api: Api, database: Documents, name: str) -> None:
    """It is what a variable has that was not set, and would read everything again."""
    wanted = feed(database.name, "c")
    created = await api.create(name, wanted, LATEST)
    for start in (
        at(start_at_operation_time=feed_pb2.ClusterTime()),
        at(start_at_operation_time=feed_pb2.ClusterTime(increment=1)),
        at(time=timestamp_pb2.Timestamp()),
    ):
        reasons = await start_everywhere(api, wanted, name, start)
        assert set(reasons.values()) == {"MESSAGE_INVALID"}, reasons
        check(await refused(api.seek(name, start)), INVALID, "MESSAGE_INVALID")
    assert (await api.get(name)).position == created.position


# --- Oversized requests.


async def test_oversized_requests(api: Api, database: Documents) -> None:
    large = feed("d", "c", comment=b"x" * (260 << 10))
    check(await refused(api.watch(large).opened()), INVALID, "MESSAGE_INVALID")
    check(await refused((await api.session(feed=large)).opened()), INVALID, "MESSAGE_INVALID")
    check(await refused(api.create("large", large)), INVALID, "MESSAGE_INVALID")
    # gRPC rejects a far too large message without reading it.
    huge = feed("d", "c", comment=b"x" * (5 << 20))
    assert (await refused(api.watch(huge).opened())).code == "RESOURCE_EXHAUSTED"
    assert (await refused((await api.session(feed=huge)).opened())).code == "RESOURCE_EXHAUSTED"
    assert (await refused(api.create("huge", huge))).code == "RESOURCE_EXHAUSTED"
    # The server still works.
    receiver = api.watch(feed(database.name, "c"))
    await receiver.opened()
    receiver.cancel()


# --- Credentials.


@pytest.mark.parametrize("key", ["", "wrong", OPERATOR_KEY, "é"])
async def test_unauthenticated(tenants: Here, key: str) -> None:
    messages = set()
    async with tenants.api.with_key(key.encode("ascii", "replace").decode()) as nobody:
        for call in (
            nobody.watch(feed("d")).opened(),
            (await nobody.session(feed=feed("d"))).opened(),
            nobody.resolve(feed("d"), LATEST),
            nobody.create("a", feed("d")),
            nobody.get("a"),
            nobody.page(),
            nobody.update(name="a"),
            nobody.delete("a"),
            nobody.seek("a", LATEST),
        ):
            outcome = await refused(call)
            check(outcome, "UNAUTHENTICATED", "UNAUTHENTICATED")
            messages.add(outcome.message)
    assert len(messages) == 1
