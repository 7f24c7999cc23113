"""The largest request that is allowed costs the event loop two milliseconds at most, whatever it asks.

Counted in instructions of Python, which are the same in each run and on each machine. What C does between two of them
is not counted: which decoders may meet a client's bytes, and how many of these, is another test's matter
(`tests/checks/test_foreign_bytes.py`).
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import bson
import grpc.aio
import pytest
import pytest_asyncio

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2, operator_pb2, subscriptions_pb2
from feedmux_embedded import RedisServer, ReplicaSet
from feedmux_server.tenants.registry import hash_key
from feedmux_server.workers.request_checks import KnownVerdicts
from tests.documents import Documents
from tests.integration.servers import KEY_A, OPERATOR_KEY, Here, serving, settings
from tests.integration.wire import LATEST, at

COST_MAX = 60_000
"""Python runs about 30 of them in a microsecond. The most expensive request takes 56,348 in Python 3.11."""


def pipeline_bson() -> bytes:
    """As many elements as 64 KiB hold."""
    return bson.encode({"pipeline": [{"$match": {"a": {"$in": [None] * 9_200}}}]})


def deep_bson() -> bytes:
    deepest: dict[str, Any] = {}
    for _ in range(90):
        deepest = {"a": deepest}
    return bson.encode({"pipeline": [{"$match": {"a": {"$in": [deepest] * 90}}}]})


JSONS = {
    "elements": '[{"$match":{"a":{"$in":[' + ",".join(["0"] * 9_200) + "]}}}]",
    "documents": '[{"$match":{"a":{"$in":[' + ",".join(["{}"] * 5_000) + "]}}}]",
    "escapes": '[{"$match":{"a":"' + "\\u00e9" * 30_000 + '"}}]',
    "types": '[{"$match":{"a":{"$in":[' + ",".join(['{"$numberInt":"1"}'] * 9_000) + "]}}}]",
    "spaces": "[" + " " * 190_000 + "]",
    "open brackets": "[" * 196_000,
    "open documents": '[{"a":' + '{"a":' * 39_000,
    "no JSON": "x" * 196_000,
}

SMALL: dict[str, list[dict[str, Any]]] = {
    "elements": [{"$match": {"a": {"$in": [None] * 110}}}],
    "fields": [{"$project": {f"{number:x}": 1 for number in range(60)}}],
    "expressions": [{"$match": {"$expr": {"$and": ["$a"] * 40}}}],
    "stages": [{"$match": {}}] * 22,
}
"""Just small enough to be checked on the event loop."""


def full_comment() -> bytes:
    return bson.encode({"comment": fields(720)})


def fields(count: int) -> dict[str, None]:
    return {f"{number:x}": None for number in range(count)}


def nasty_feeds(database: str) -> Iterator[tuple[str, feed_pb2.Feed]]:
    base: dict[str, Any] = {"source": "main", "database": database, "collection": "c"}
    options: dict[str, Any] = {"comment": full_comment(), "collation": bson.encode({"locale": "x" * 4000})}
    for name, text in JSONS.items():
        yield f"JSON {name}", feed_pb2.Feed(**base, **options, pipeline=feed_pb2.Pipeline(extended_json=text))
    for name, data in (("elements", pipeline_bson()), ("depth", deep_bson())):
        yield f"BSON {name}", feed_pb2.Feed(**base, **options, pipeline=feed_pb2.Pipeline(bson=data))
    for name, stages in SMALL.items():
        yield f"small {name}", feed_pb2.Feed(**base, pipeline=feed_pb2.Pipeline(bson=bson.encode({"pipeline": stages})))
    yield "comment", feed_pb2.Feed(**base, comment=full_comment())
    yield "collation", feed_pb2.Feed(**base, collation=bson.encode(fields(720)))
    yield "comment of 4 MiB", feed_pb2.Feed(**base, comment=bson.encode({"comment": [None] * 25_000}))
    yield "names", feed_pb2.Feed(source="s" * 1000, database="é" * 500, collection="\0" * 1000)


def nasty_starts() -> Iterator[tuple[str, feed_pb2.Start]]:
    token = bson.encode({"_data": "82" * 8000})
    many = bson.encode(fields(2500))
    for kind in ("resume_after", "start_after"):
        yield f"{kind} long", at(**{kind: token})
        yield f"{kind} of many fields", at(**{kind: many})
    yield "position", feed_pb2.Start(position=b"\xf1" + b"\xff" * 4095)


CHANGE_FEED, SUBSCRIPTIONS, OPERATOR = "feedmux.v1.ChangeFeed", "feedmux.v1.Subscriptions", "feedmux.v1.Operator"


def requests_of(database: str) -> dict[str, tuple[str, Any]]:
    """Method and message of each, by a name."""
    made: dict[str, tuple[str, Any]] = {}
    feed = feed_pb2.Feed(source="main", database=database, collection="c")
    for name, each in nasty_feeds(database):
        subscription = subscriptions_pb2.Subscription(name="cost", feed=each)
        mask = {"paths": ["feed"]}
        made |= {
            f"Watch, {name}": (f"{CHANGE_FEED}/Watch", wire.WatchRequest(feed=each)),
            f"Subscribe, {name}": (f"{CHANGE_FEED}/Subscribe", wire.SubscribeRequest(open=wire.Open(feed=each))),
            f"Explain, {name}": (f"{CHANGE_FEED}/Explain", wire.ExplainRequest(feed=each)),
            f"ResolvePosition, {name}": (
                f"{CHANGE_FEED}/ResolvePosition",
                wire.ResolvePositionRequest(feed=each, start=LATEST),
            ),
            f"PlanRange, {name}": (
                f"{CHANGE_FEED}/PlanRange",
                wire.PlanRangeRequest(feed=each, after=b"x" * 4096, events_max=1, bytes_max=1),
            ),
            f"ReadRange, {name}": (
                f"{CHANGE_FEED}/ReadRange",
                wire.ReadRangeRequest(feed=each, after=b"x" * 4096, until=b"x" * 4096),
            ),
            f"Create, {name}": (
                f"{SUBSCRIPTIONS}/CreateSubscription",
                subscriptions_pb2.CreateSubscriptionRequest(subscription=subscription),
            ),
            f"Update, {name}": (
                f"{SUBSCRIPTIONS}/UpdateSubscription",
                subscriptions_pb2.UpdateSubscriptionRequest(subscription=subscription, update_mask=mask),
            ),
        }
    for name, start in nasty_starts():
        made |= {
            f"Watch, {name}": (f"{CHANGE_FEED}/Watch", wire.WatchRequest(feed=feed, start=start)),
            f"Explain, {name}": (f"{CHANGE_FEED}/Explain", wire.ExplainRequest(feed=feed, start=start)),
            f"Seek, {name}": (
                f"{SUBSCRIPTIONS}/SeekSubscription",
                subscriptions_pb2.SeekSubscriptionRequest(name="cost", to=start),
            ),
        }
    last_acked = wire.LastAcked(resume_token=bson.encode(fields(2500)), epoch=1)
    made |= {
        "Subscribe, last_acked": (
            f"{CHANGE_FEED}/Subscribe",
            wire.SubscribeRequest(open=wire.Open(subscription="cost", last_acked=last_acked)),
        ),
        "Get": (f"{SUBSCRIPTIONS}/GetSubscription", subscriptions_pb2.GetSubscriptionRequest(name="é" * 512)),
        "List": (f"{SUBSCRIPTIONS}/ListSubscriptions", subscriptions_pb2.ListSubscriptionsRequest(page_size=1000)),
        "Delete": (
            f"{SUBSCRIPTIONS}/DeleteSubscription",
            subscriptions_pb2.DeleteSubscriptionRequest(name="x" * 1000, etag="x" * 250),
        ),
        "ListDeadLetters": (
            f"{SUBSCRIPTIONS}/ListDeadLetters",
            subscriptions_pb2.ListDeadLettersRequest(name="cost", key=bson.encode(fields(130)), page_token="x" * 1000),
        ),
        "GetDeadLetter": (
            f"{SUBSCRIPTIONS}/GetDeadLetter",
            subscriptions_pb2.GetDeadLetterRequest(name="cost", id=b"x" * 1000),
        ),
        "DiscardDeadLetters": (
            f"{SUBSCRIPTIONS}/DiscardDeadLetters",
            subscriptions_pb2.DiscardDeadLettersRequest(
                name="cost", ids=subscriptions_pb2.DiscardDeadLettersRequest.Ids(ids=[b"x" * 16] * 1000)
            ),
        ),
        "ReplayDeadLetters": (
            f"{SUBSCRIPTIONS}/ReplayDeadLetters",
            subscriptions_pb2.ReplayDeadLettersRequest(
                name="cost", ids=subscriptions_pb2.ReplayDeadLettersRequest.Ids(ids=[b"x" * 16] * 1000)
            ),
        ),
        "ListSharedStreams": (f"{OPERATOR}/ListSharedStreams", operator_pb2.ListSharedStreamsRequest()),
        "ListTenants": (f"{OPERATOR}/ListTenants", operator_pb2.ListTenantsRequest(tenant="x" * 1000)),
        "EndSubscriber": (f"{OPERATOR}/EndSubscriber", operator_pb2.EndSubscriberRequest(subscriber_id="x" * 250)),
    }
    return made


RAW = {
    "paths": ("UpdateSubscription", b"\x12\xf0\xff\x0e" + b"\x0a\x00" * (0x3BFF0 // 2)),
    "unknown fields": ("UpdateSubscription", b"\xf8\x7f\x00" * 80_000),
    "a message again and again": ("CreateSubscription", b"\x0a\x02\x12\x00" * 60_000),
}


@pytest_asyncio.fixture(scope="module", params=["any pipelines", "bounded pipelines"])
async def alone(
    request: pytest.FixtureRequest,
    mongo: ReplicaSet,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Here]:
    configuration = settings(mongo.uri, redis_server.url)
    if request.param == "any pipelines":
        async with serving(configuration) as here:
            yield here
        return
    path = tmp_path_factory.mktemp("costs") / "tenants.yaml"
    tenant = {"name": "costs", "api_key_hashes": [hash_key(KEY_A)], "quotas": {"requests_per_s": 1_000_000}}
    path.write_text(json.dumps({"tenants": [tenant]}))
    configuration |= {"tenants_file": str(path), "operator_key_hashes": [hash_key(OPERATOR_KEY)]}
    async with serving(configuration, key=KEY_A) as here:
        yield here


@contextmanager
def longest_callback(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """The most instructions that Python has run in one callback of this loop."""
    run = asyncio.Handle._run
    longest = count = 0

    def counting(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "opcode"
        return counting

    def entered(frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return counting

    def counted(handle: asyncio.Handle) -> None:
        nonlocal count, longest
        count = 0
        before = sys.gettrace()
        sys.settrace(entered)
        try:
            run(handle)
        finally:
            sys.settrace(before)
        longest = max(longest, count)

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.Handle, "_run", counted)
        yield lambda: longest


async def ended(here: Here, method: str, data: bytes) -> None:
    """Until the server has answered, whatever it says."""
    channel: Any = here.api.channel
    metadata = here.api.metadata
    if OPERATOR in method:
        channel, metadata = here.api.operator_channel, (("authorization", f"Bearer {OPERATOR_KEY}"),)
    call = channel.unary_stream(f"/{method}")(data, timeout=60, metadata=metadata)
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
            raise
    call.cancel()


async def cost(here: Here, monkeypatch: pytest.MonkeyPatch, method: str, data: bytes) -> int:
    """The most instructions that it takes in one turn of the event loop."""
    monkeypatch.setattr(here.server.service.checks, "_known", KnownVerdicts())
    with longest_callback(monkeypatch) as longest:
        await ended(here, method, data)
        await asyncio.sleep(0.01)
    return longest()


async def test_the_largest_requests(alone: Here, database: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription = feed_pb2.Feed(source="main", database=database.name, collection="c")
    await alone.api.create("cost", subscription)
    requests = requests_of(database.name)
    method, message = next(iter(requests.values()))
    await ended(alone, method, message.SerializeToString())  # what is done once in a process is no request's cost
    costs = {
        name: await cost(alone, monkeypatch, method, message.SerializeToString())
        for name, (method, message) in requests.items()
    }
    for name, (method, data) in RAW.items():
        costs[name] = await cost(alone, monkeypatch, f"{SUBSCRIPTIONS}/{method}", data)
    await alone.api.delete("cost")
    assert {name: count for name, count in costs.items() if not 0 < count <= COST_MAX} == {}


async def test_every_method_is_here(database: Documents) -> None:
    methods = {method for method, _ in requests_of(database.name).values()}
    pairs = ((wire, "ChangeFeed"), (subscriptions_pb2, "Subscriptions"), (operator_pb2, "Operator"))
    there = {
        f"{service.full_name}/{method.name}"
        for module, name in pairs
        for service in [module.DESCRIPTOR.services_by_name[name]]
        for method in service.methods
    }
    assert there - methods == {f"{OPERATOR}/Drain"}  # it has no fields, and ends the server
