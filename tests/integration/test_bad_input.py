"""Bad input gets its documented status with ErrorInfo; never UNKNOWN, never a Python exception's text, nothing lost."""

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


GOOD = bson.encode({"pipeline": [{"$match": {"a": "é"}}]})
DEEP_JSON = '[{"$match": ' + '{"a": ' * 3000 + "1" + "}" * 3000 + "}]"

FEEDS: dict[str, tuple[feed_pb2.Feed, str, str]] = {
    # names
    "unknown source": (feed(source="nowhere"), MISSING, "SOURCE_NOT_FOUND"),
    "database too long": (feed("d" * 64), INVALID, "NAME_INVALID"),
    # pipelines
    "no JSON": (feed("d", "c", "[{"), INVALID, "PIPELINE_INVALID"),
    "no array": (feed("d", "c", "{}"), INVALID, "PIPELINE_INVALID"),
    "bad $oid": (feed("d", "c", '[{"$match": {"a": {"$oid": "zz"}}}]'), INVALID, "PIPELINE_INVALID"),
    "65-bit number": (feed("d", "c", '[{"$match": {"a": 36893488147419103232}}]'), INVALID, "PIPELINE_INVALID"),
    "deep JSON": (feed("d", "c", DEEP_JSON), INVALID, "PIPELINE_INVALID"),
    # BSON
    "BSON cut": (raw_pipeline(GOOD[:-3]), INVALID, "BSON_INVALID"),
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
