"""Bad input gets its documented status with ErrorInfo; never UNKNOWN, never a Python exception's text, nothing lost."""

import json
import struct
from collections.abc import Callable
from typing import Any

import bson
import grpc
import pytest
from pymongo.database import Database

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, operator_pb2
from tests.integration.servers import KEY_B, OPERATOR_KEY, Here
from tests.integration.wire import LATEST, Api, Refused, at, feed, refusal, refused

Documents = Database[dict[str, Any]]

INVALID, DENIED, MISSING, FAILED = "INVALID_ARGUMENT", "PERMISSION_DENIED", "NOT_FOUND", "FAILED_PRECONDITION"
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
    "admin": (feed("admin"), DENIED, "NAMESPACE_DENIED"),
    "local": (feed("local", "oplog.rs"), DENIED, "NAMESPACE_DENIED"),
    "config": (feed("config"), DENIED, "NAMESPACE_DENIED"),
    "system collection": (feed("d", "system.views"), DENIED, "NAMESPACE_DENIED"),
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
    "$out": (feed("d", "c", '[{"$out": "x"}]'), INVALID, "STAGE_NOT_ALLOWED"),
    "$lookup": (feed("d", "c", '[{"$lookup": {}}]'), INVALID, "STAGE_NOT_ALLOWED"),
    "$group": (feed("d", "c", '[{"$group": {"_id": 1}}]'), INVALID, "STAGE_NOT_ALLOWED"),
    "$where": (feed("d", "c", '[{"$match": {"$or": [{"$where": "1"}]}}]'), INVALID, "STAGE_NOT_ALLOWED"),
    "$function": (
        feed("d", "c", '[{"$addFields": {"a": [{"b": {"$function": {"body": "", "args": [], "lang": "js"}}}]}}]'),
        INVALID,
        "STAGE_NOT_ALLOWED",
    ),
    "$accumulator": (feed("d", "c", '[{"$project": {"a": {"$accumulator": {}}}}]'), INVALID, "STAGE_NOT_ALLOWED"),
    "unknown operator": (feed("d", "c", '[{"$match": {"$foo": 1}}]'), INVALID, "OPTION_REFUSED"),
    "unknown expression": (feed("d", "c", '[{"$addFields": {"a": {"$foo": 1}}}]'), INVALID, "OPTION_REFUSED"),
    # BSON
    "BSON length": (raw_pipeline(BAD_LENGTH), INVALID, "BSON_INVALID"),
    "BSON cut": (raw_pipeline(GOOD[:-3]), INVALID, "BSON_INVALID"),
    "BSON of one byte": (raw_pipeline(b"\1"), INVALID, "BSON_INVALID"),
    "BSON UTF-8": (raw_pipeline(GOOD.replace("é".encode(), b"\xff\xfe")), INVALID, "BSON_INVALID"),
    "BSON depth": (raw_pipeline(nested(101)), INVALID, "BSON_INVALID"),
    "BSON without pipeline": (raw_pipeline(bson.encode({"x": []})), INVALID, "PIPELINE_INVALID"),
    "collation": (feed("d", "c", collation=b"junk"), INVALID, "BSON_INVALID"),
    "unknown collation": (feed("d", "c", collation=bson.encode({"locale": "xx"})), INVALID, "OPTION_REFUSED"),
    "comment": (feed("d", "c", comment=b"junk"), INVALID, "BSON_INVALID"),
    "comment of two fields": (feed("d", "c", comment=bson.encode({"comment": 1, "x": 1})), INVALID, "MESSAGE_INVALID"),
    "comment that bson cannot decode": (
        feed("d", "c", comment=bson.encode({"comment": bson.DatetimeMS(2**62)})),
        "OK",
        "",
    ),
    # options
    "full_document": (feed("d", "c", full_document="sometimes"), INVALID, "OPTION_REFUSED"),
    "before change": (feed("d", "c", full_document_before_change="sometimes"), INVALID, "OPTION_REFUSED"),
    "read preference": (feed("d", "c", read_preference="fastest"), INVALID, "OPTION_REFUSED"),
    "read concern": (feed("d", "c", read_concern="local"), INVALID, "OPTION_REFUSED"),
    "unknown read concern": (feed("d", "c", read_concern="best"), INVALID, "OPTION_REFUSED"),
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


async def test_mongodbs_words_code_and_labels(api: Api) -> None:
    outcome = await refused(api.watch(feed("d", "c", '[{"$match": {"$foo": 1}}]')).opened())
    assert "$foo" in outcome.message
    assert outcome.metadata["code"] == "2"
    assert outcome.metadata["code_name"] == "BadValue"


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


async def test_views(api: Api, database: Documents) -> None:
    database.command("create", "v", viewOn="c", pipeline=[])
    check(await refused(api.watch(feed(database.name, "v")).opened()), INVALID, "OPTION_REFUSED")


# --- Positions and starts.


@pytest.fixture
async def position(api: Api, database: Documents) -> bytes:
    receiver = api.watch(feed(database.name, "c"))
    await receiver.opened()
    database.c.insert_one({"n": 0})
    await receiver.take(1)
    receiver.cancel()
    return receiver.position


POSITIONS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "junk": lambda _: b"junk",
    "truncated": lambda position: position[:-1],
    "cut to its head": lambda position: position[:20],
    "one byte": lambda position: position[:1],
    "flipped at the end": lambda position: position[:-1] + bytes((position[-1] ^ 1,)),
    "flipped in the middle": lambda position: position[:25] + bytes((position[25] ^ 4,)) + position[26:],
    "unknown version": lambda position: b"\xf3" + position[1:],
    "an earlier version": lambda position: b"\xf1" + position[1:],
    "longer": lambda position: position + b"\0",
    "over 4 KiB": lambda position: position + b"\0" * 4096,
    "zeroes": lambda position: b"\0" * len(position),
}


@pytest.mark.parametrize("case", POSITIONS)
async def test_positions(api: Api, database: Documents, position: bytes, case: str, name: str) -> None:
    start, wanted = at(position=POSITIONS[case](position)), feed(database.name, "c")
    check(await refused(api.watch(wanted, start).opened()), INVALID, "POSITION_INVALID")
    check(await refused((await api.session(feed=wanted, start=start)).opened()), INVALID, "POSITION_INVALID")
    check(await refused(api.resolve(wanted, start)), INVALID, "POSITION_INVALID")
    check(await refused(api.create(name, wanted, start)), INVALID, "POSITION_INVALID")


async def test_every_flipped_bit_of_a_position(api: Api, database: Documents, position: bytes) -> None:
    for index in range(len(position)):
        flipped = position[:index] + bytes((position[index] ^ (1 << index % 8),)) + position[index + 1 :]
        check(await refused(api.resolve(feed(database.name, "c"), at(position=flipped))), INVALID, "POSITION_INVALID")


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


async def test_positions_of_another_tenant(tenants: Here, database: Documents, name: str) -> None:
    wanted = feed(database.name, "c")
    position = (await tenants.api.resolve(wanted, LATEST)).position
    await tenants.api.create(name, wanted)
    async with tenants.api.with_key(KEY_B) as other:
        check(await refused(other.watch(wanted, at(position=position)).opened()), INVALID, "POSITION_FOREIGN")
        check(await refused(other.get(name)), MISSING, "SUBSCRIPTION_NOT_FOUND")
        check(await refused((await other.session(name)).opened()), MISSING, "SUBSCRIPTION_NOT_FOUND")
        assert name not in [each.name for each in (await other.page(1000)).subscriptions]
    assert name in [each.name for each in (await tenants.api.page(1000)).subscriptions]
    await tenants.api.delete(name)


TOKENS: dict[str, tuple[bytes, str, str]] = {
    "no BSON": (b"junk", INVALID, "BSON_INVALID"),
    "empty": (b"", INVALID, "BSON_INVALID"),
    "no token": (bson.encode({"x": 1}), INVALID, "POSITION_INVALID"),
    "no hex": (bson.encode({"_data": "zz"}), INVALID, "POSITION_INVALID"),
    "a number": (bson.encode({"_data": 5}), INVALID, "POSITION_INVALID"),
    "short": (bson.encode({"_data": "82"}), INVALID, "POSITION_INVALID"),
    "long": (bson.encode({"_data": "8" * 100_000}), INVALID, "POSITION_INVALID"),
    "too long": (bson.encode({"_data": "8" * 140_000}), INVALID, "MESSAGE_INVALID"),
}


@pytest.mark.parametrize("kind", ["resume_after", "start_after"])
@pytest.mark.parametrize("case", TOKENS)
async def test_native_tokens(api: Api, database: Documents, case: str, kind: str) -> None:
    token, code, reason = TOKENS[case]
    outcome = await refused(api.watch(feed(database.name, "c"), at(**{kind: token})).opened())
    check(outcome, code, reason)


async def test_a_native_token_that_is_not_found(api: Api, database: Documents) -> None:
    database.c.insert_one({"n": 0})
    with database.c.watch() as stream:
        database.c.insert_one({"n": 1})
        token = bson.encode(stream.next()["_id"])
    database.c.insert_one({"n": 2})
    receiver = api.watch(feed(database.name, "c", '[{"$match": {"fullDocument.n": 2}}]'), at(resume_after=token))
    check(await receiver.end(), FAILED, "RESUME_TOKEN_NOT_FOUND")


# --- Sessions.


async def inline(api: Api, database: Documents) -> Any:
    session = await api.open(feed=feed(database.name, "c"))
    database.c.insert_many([{"n": n} for n in range(3)])
    await session.take(3)
    return session


async def test_first_message_is_not_open(api: Api) -> None:
    for message in ({"credit": wire.Credit(events=1, bytes=1)}, {"ack": wire.Ack()}, {"close": wire.Close()}, {}):
        call = api.feeds.Subscribe()
        await call.write(wire.SubscribeRequest(**message))
        check(await refused(call.read()), INVALID, "OPEN_REQUIRED")


async def test_no_message_at_all(api: Api) -> None:
    call = api.feeds.Subscribe()
    await call.done_writing()
    check(await refused(call.read()), INVALID, "OPEN_REQUIRED")


async def test_open_twice_and_empty_messages(api: Api, database: Documents) -> None:
    session = await inline(api, database)
    await session.send(open=wire.Open(feed=feed(database.name, "c")))
    check(await session.end(), INVALID, "OPEN_REQUIRED")
    session = await inline(api, database)
    await session.send()
    check(await session.end(), INVALID, "MESSAGE_INVALID")


LAST_ACKED: dict[str, tuple[wire.LastAcked, str]] = {
    "nothing": (wire.LastAcked(epoch=1), "MESSAGE_INVALID"),
    "junk": (wire.LastAcked(epoch=1, position=b"junk"), "POSITION_INVALID"),
    "no BSON": (wire.LastAcked(epoch=1, resume_token=b"junk"), "BSON_INVALID"),
    "no token": (wire.LastAcked(epoch=1, resume_token=bson.encode({"_data": "00"})), "POSITION_INVALID"),
}


@pytest.mark.parametrize("case", LAST_ACKED)
async def test_last_acked(api: Api, database: Documents, name: str, case: str) -> None:
    last_acked, reason = LAST_ACKED[case]
    await api.create(name, feed(database.name, "c"))
    check(await refused((await api.session(name, last_acked=last_acked)).opened()), INVALID, reason)
    # The subscription is free again.
    await (await api.open(name)).close()


# --- Undecodable and oversized requests.

UNARY = [
    "/feedmux.v1.ChangeFeed/ResolvePosition",
    *(
        f"/feedmux.v1.Subscriptions/{each}Subscription{'s' if each == 'List' else ''}"
        for each in ("Create", "Get", "List", "Update", "Delete", "Seek")
    ),
]
UNDECODABLE = [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab", b"\x0b" * 200]


@pytest.mark.parametrize("method", UNARY)
async def test_undecodable_unary(api: Api, method: str) -> None:
    for data in UNDECODABLE:
        check(await refused(api.raw(method, data)), INVALID, "MESSAGE_INVALID")


async def test_undecodable_streams(api: Api, database: Documents) -> None:
    channel: Any = api.channel
    for data in UNDECODABLE:
        watch = channel.unary_stream("/feedmux.v1.ChangeFeed/Watch")(data)
        check(await refused(watch.read()), INVALID, "MESSAGE_INVALID")
        subscribe = channel.stream_stream("/feedmux.v1.ChangeFeed/Subscribe")()
        await subscribe.write(data)
        check(await refused(subscribe.read()), INVALID, "MESSAGE_INVALID")
        later = channel.stream_stream("/feedmux.v1.ChangeFeed/Subscribe")()
        opening = wire.SubscribeRequest(open=wire.Open(feed=feed(database.name, "c")))
        await later.write(opening.SerializeToString())
        await later.read()
        await later.write(data)
        check(await refused(later.read()), INVALID, "MESSAGE_INVALID")


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


# --- Subscriptions.


async def test_same_name_other_content(api: Api, database: Documents, name: str) -> None:
    await api.create(name, feed(database.name, "c"))
    other = await refused(api.create(name, feed(database.name, "d"), on_invalidate=2))
    check(other, "ALREADY_EXISTS", "SUBSCRIPTION_EXISTS")
    assert other.message.endswith(
        ': feed.collection is "c", not "d"; on_invalidate is ON_INVALIDATE_UNSPECIFIED, not ON_INVALIDATE_CONTINUE'
    )
    changed = feed(database.name, "c", '[{"$match": {"n": 1}}]', show_expanded_events=True)
    other = await refused(api.create(name, changed))
    check(other, "ALREADY_EXISTS", "SUBSCRIPTION_EXISTS")
    assert other.message.endswith(": feed.pipeline differs; feed.show_expanded_events is false, not true")


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


async def test_the_operator_has_other_credentials(tenants: Here) -> None:
    request = operator_pb2.ListSharedStreamsRequest()
    for key in ("", "wrong"):
        async with tenants.api.with_key(key) as nobody:
            outcome = await refused(nobody.operator.ListSharedStreams(request, metadata=nobody.metadata))
            check(outcome, "UNAUTHENTICATED", "UNAUTHENTICATED")
    outcome = await refused(tenants.api.operator.ListSharedStreams(request, metadata=tenants.api.metadata))
    check(outcome, DENIED, "METHOD_DENIED")
    async with tenants.api.with_key(OPERATOR_KEY) as operator:
        assert (await operator.operator.ListSharedStreams(request, metadata=operator.metadata)).totals.memory_bytes_max
