"""An abusive tenant: does what its default quotas permit, as often as they permit, until it is stopped.

Each vector is one kind of abuse: a few calls, repeated by several tasks. Calls that the server rejects are counted
separately: a vector harms the server as much as rejecting its calls costs. gRPC's stubs or a bare socket send
everything, because no client would send such requests.
"""

import asyncio
import itertools
import os
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import bson
import grpc
import grpc.aio
from bson.timestamp import Timestamp
from google.protobuf import field_mask_pb2

from bench.crew import Gate
from bench.settings import COLLECTION, DATABASE
from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import change_feed_pb2_grpc, feed_pb2, subscriptions_pb2, subscriptions_pb2_grpc

PIPELINE_BYTES: Final = 64 * 1024
REQUEST_BYTES: Final = (4 * 1024 - 64, 250 * 1024, 3 * 1024 * 1024)
"""Sizes of comments and collations: a legal one, the largest request, and one that any limit rejects."""
HALF_OPEN: Final = 64
"""The number of connections with a message that is never finished, and of the same without credentials."""
_PAUSE_S: Final = 0.005
_CALL_S: Final = 30.0
_MARK: Final = 0x5A5A5A5A
_TASKS: Final = 8


@dataclass(frozen=True, slots=True)
class Abuse:
    """The task of one process."""

    address: str
    key: str
    start: Timestamp
    """Where the history begins that it reads repeatedly."""
    vectors: Sequence[str]
    """Names in `VECTORS`."""
    definitions: int = 100
    """The number of subscriptions of the largest size that `lists` requests."""


@dataclass(slots=True)
class Abused:
    """The result of one process."""

    calls: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    """The number of rejected calls by status."""
    cpu_s: float = 0.0


def abuse(gate: Gate, task: Abuse) -> Abused:
    """Run the vectors until the gate is stopped."""
    return asyncio.run(_abuse(gate, task))


async def _abuse(gate: Gate, task: Abuse) -> Abused:
    done = Abused()
    async with grpc.aio.insecure_channel(task.address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        tenant = Tenant(task, channel, done)
        for name in task.vectors:
            if name in _PREPARED:
                await _PREPARED[name](tenant)
        await gate.wait_async()
        # Real abuse comes from other machines: here it may use only the CPU that the measured processes leave.
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
        began_s, done.calls, done.rejected = time.process_time(), 0, {}
        works = {asyncio.create_task(_again(call, done)) for name in task.vectors for call in VECTORS[name](tenant)}
        await asyncio.to_thread(gate.stopped.wait)
        while works:  # gRPC may report a cancellation as an error of the call
            for each in works:
                each.cancel()
            _, works = await asyncio.wait(works, timeout=0.5)
        done.cpu_s = time.process_time() - began_s
    return done


Call = Callable[[], Awaitable[None]]


async def _again(call: Call, done: Abused) -> None:
    while True:
        done.calls += 1
        try:
            await call()
        except grpc.aio.AioRpcError as error:
            name = error.code().name
            done.rejected[name] = done.rejected.get(name, 0) + 1
        except OSError:
            done.rejected["CONNECTION"] = done.rejected.get("CONNECTION", 0) + 1
        await asyncio.sleep(_PAUSE_S)


class Tenant:
    """Makes calls with the tenant's key. Raises AioRpcError."""

    def __init__(self, task: Abuse, channel: grpc.aio.Channel, done: Abused) -> None:
        self.task = task
        self.done = done
        self.metadata = (("authorization", f"Bearer {task.key}"),)
        self._feeds: Any = change_feed_pb2_grpc.ChangeFeedStub(channel)
        self._control: Any = subscriptions_pb2_grpc.SubscriptionsStub(channel)
        self._numbers = itertools.count(os.getpid() % 10_000 * 10_000)

    def number(self) -> int:
        """Return a number that was not used before, so that no cache helps."""
        return next(self._numbers)

    async def ask(self, method: str, request: Any) -> Any:
        stub = self._control if method.endswith(("Subscription", "Subscriptions")) else self._feeds
        return await getattr(stub, method)(request, metadata=self.metadata, timeout=_CALL_S)

    async def watch(self, messages: int, **fields: Any) -> None:
        """Open a stream, take the given number of messages, and cancel it."""
        await self._take(self._feeds.Watch(wire.WatchRequest(**fields), metadata=self.metadata), messages)

    async def read_range(self, messages: int, **fields: Any) -> None:
        await self._take(self._feeds.ReadRange(wire.ReadRangeRequest(**fields), metadata=self.metadata), messages)

    async def subscribe(self, messages: int, **fields: Any) -> None:
        """Do the same over Subscribe; without fields, send nothing and wait for an answer."""
        call = self._feeds.Subscribe(metadata=self.metadata)
        if fields:
            await call.write(wire.SubscribeRequest(open=wire.Open(**fields)))
        await self._take(call, messages)

    async def _take(self, call: Any, messages: int) -> None:
        try:
            for _ in range(messages):
                if await call.read() is grpc.aio.EOF:
                    break
            if call.done() and await call.code() is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), details=await call.details()
                )
        finally:
            call.cancel()


def _feed(comment: str = "", **fields: Any) -> feed_pb2.Feed:
    found = feed_pb2.Feed(source="main", database=DATABASE, collection=COLLECTION, **fields)
    if comment:
        found.comment = bson.encode({"comment": comment})
    return found


@cache
def _many_elements(size: int) -> bytes:
    """Return a pipeline of as many elements as `size` bytes hold, with a mark to be replaced."""
    numbers = [_MARK]
    while True:
        found = bson.encode({"pipeline": [{"$match": {"fullDocument.quantity": {"$in": numbers}}}]})
        if len(found) + 12 * 500 >= size:
            return found
        numbers += [1] * 500


@cache
def _long_text(size: int) -> str:
    """Return the same pipeline in Extended JSON, with the longest notation of a number."""
    count = len(bson.decode(_many_elements(size))["pipeline"][0]["$match"]["fullDocument.quantity"]["$in"])
    numbers = ",".join(['{"$numberInt":"MARK"}', *['{"$numberInt":"1"}'] * (count - 1)])
    return f'[{{"$match":{{"fullDocument.quantity":{{"$in":[{numbers}]}}}}}}]'


def _large_feed(tenant: Tenant, *, text: bool, size: int = PIPELINE_BYTES) -> feed_pb2.Feed:
    feed = _feed()
    if text:
        feed.pipeline.extended_json = _long_text(size).replace("MARK", str(tenant.number()))
    else:
        mark, number = struct.pack("<i", _MARK), struct.pack("<i", tenant.number())
        feed.pipeline.bson = _many_elements(size).replace(mark, number, 1)
    return feed


# --- The vectors.


def _pipelines(tenant: Tenant) -> list[Call]:
    """Send distinct pipelines of the largest size, in both notations, in every call that has a pipeline."""

    async def explain(text: bool) -> None:
        await tenant.ask("Explain", wire.ExplainRequest(feed=_large_feed(tenant, text=text)))

    async def create(text: bool) -> None:
        await tenant.ask("CreateSubscription", _creation(f"large-{text}", _large_feed(tenant, text=text)))

    async def update(text: bool) -> None:
        await tenant.ask("UpdateSubscription", _updating("large-True", _large_feed(tenant, text=text)))

    async def watch(text: bool) -> None:
        await tenant.watch(1, feed=_large_feed(tenant, text=text))

    async def subscribe(text: bool) -> None:
        await tenant.subscribe(1, feed=_large_feed(tenant, text=text))

    return [partial(each, text) for each in (explain, create, update, watch, subscribe) for text in (True, False)]


def _creation(name: str, feed: feed_pb2.Feed) -> subscriptions_pb2.CreateSubscriptionRequest:
    return subscriptions_pb2.CreateSubscriptionRequest(
        subscription=subscriptions_pb2.Subscription(name=name, feed=feed),
        start=feed_pb2.Start(earliest=feed_pb2.Earliest()),
    )


def _updating(name: str, feed: feed_pb2.Feed) -> subscriptions_pb2.UpdateSubscriptionRequest:
    return subscriptions_pb2.UpdateSubscriptionRequest(
        subscription=subscriptions_pb2.Subscription(name=name, feed=feed),
        update_mask=field_mask_pb2.FieldMask(paths=["feed"]),
    )


_NOTE: Final = "$fullDocument.note"


def _costly(tenant: Tenant) -> list[Call]:
    """Open separate live feeds whose pipelines cost MongoDB as much per event as the default policy allows."""
    # Each pipeline is just below the limits of `pipelines: bounded`.
    kinds: list[Callable[[], list[dict[str, Any]]]] = [
        lambda: [{"$match": {"$or": [{"fullDocument.note": {"$regex": f"{n}.*{n}$"}} for n in range(40)]}}],
        lambda: [{"$match": {"fullDocument.note": {"$in": [f"x{n:05}" for n in range(3_000)]}}}],
        lambda: [{"$set": {f"a{n}": {"$toUpper": _NOTE}}} for n in range(12)],
        lambda: [{"$match": {"$expr": {"$or": [{"$gt": [{"$strLenCP": _NOTE}, 9_000 + n]} for n in range(700)]}}}],
        lambda: [{"$set": {f"n{n}": {"$size": {"$split": [_NOTE, "a"]}}}} for n in range(49)],
    ]

    def call(number: int) -> Call:
        pipeline = bson.encode({"pipeline": kinds[number % len(kinds)]()})

        async def hold() -> None:
            feed = _feed(f"costly {tenant.task.vectors} {number}")
            feed.pipeline.bson = pipeline
            await tenant.watch(1 << 30, feed=feed)

        return hold

    return [call(number) for number in range(48)]


def _opens(tenant: Tenant) -> list[Call]:
    """Open and cancel separate feeds, some before the server has answered."""

    async def watch(messages: int) -> None:
        await tenant.watch(messages, feed=_feed(f"open {tenant.number()}"))

    async def subscribe(messages: int) -> None:
        await tenant.subscribe(messages, feed=_feed(f"open {tenant.number()}"), instance_id=str(tenant.number()))

    return [partial(each, messages) for each in (watch, subscribe) for messages in (0, 1) for _ in range(_TASKS // 2)]


def _ranges(tenant: Tenant) -> list[Call]:
    """Open separate feeds that plan the history repeatedly, in the largest ranges, and read a part of it."""
    resolved: list[bytes] = []

    async def plan() -> None:
        if not resolved:
            resolved.append((await tenant.ask("ResolvePosition", _resolving(_history(tenant)))).position)
        feed = _feed(f"range {tenant.number()}")
        request = wire.PlanRangeRequest(
            feed=feed, after=resolved[0], events_max=2**31 - 1, bytes_max=2**40, slices=1_000
        )
        found = await tenant.ask("PlanRange", request)
        await tenant.read_range(2, feed=feed, after=found.after, until=found.end)

    return [plan] * _TASKS


def _history(tenant: Tenant) -> feed_pb2.Start:
    time_ = tenant.task.start
    return feed_pb2.Start(start_at_operation_time=feed_pb2.ClusterTime(seconds=time_.time, increment=time_.inc))


def _resolving(start: feed_pb2.Start) -> wire.ResolvePositionRequest:
    return wire.ResolvePositionRequest(feed=_feed(), start=start)


def _json(tenant: Tenant) -> list[Call]:
    """Open separate feeds that render history as JSON, and cancel them while it is rendered."""

    async def watch(format_: feed_pb2.Format, messages: int) -> None:
        await tenant.watch(messages, feed=_feed(f"json {tenant.number()}"), start=_history(tenant), format=format_)

    formats = (feed_pb2.FORMAT_EXTENDED_JSON_RELAXED, feed_pb2.FORMAT_EXTENDED_JSON_CANONICAL)
    return [partial(watch, each, messages) for each in formats for messages in (1, 2, 2, 3)]


def _unfinished(tenant: Tenant) -> list[Call]:
    """Open streams without an Open message, and send messages that never end, with and without credentials."""

    async def silent() -> None:
        await tenant.subscribe(1)

    authorization = f"Bearer {tenant.task.key}"
    half = [
        partial(_half_a_message, tenant.task.address, each) for each in (authorization, "") for _ in range(HALF_OPEN)
    ]
    return [*half, *[silent] * 400]


async def _half_a_message(address: str, authorization: str) -> None:
    """Send all but the last bytes of a call's message over a separate connection, for as long as the server waits."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        size = 255 * 1024
        headers = _headers(address, "/feedmux.v1.ChangeFeed/Explain", authorization)
        block = b"".join(b"\x00" + _hpack(name) + _hpack(value) for name, value in headers)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"") + _frame(1, 4, 1, block))
        # A connection initially has a window of 64 KiB.
        content = b"\x00" + size.to_bytes(4) + bytes(60 * 1024)
        for first in range(0, len(content), 16 * 1024):
            writer.write(_frame(0, 0, 1, content[first : first + 16 * 1024]))
        await writer.drain()
        while await reader.read(65536):
            pass
    finally:
        writer.close()


def _headers(address: str, method: str, authorization: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", address),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *([("authorization", authorization)] if authorization else []),
    ]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _hpack(text: str) -> bytes:
    """Return the HPACK literal of a text of fewer than 127 bytes."""
    return bytes((len(text),)) + text.encode()


def _arithmetic(tenant: Tenant) -> list[Call]:
    """Send pipelines that refer to many fields again and again, so that the check of each has much to add up."""

    async def explain() -> None:
        number = tenant.number()
        fields = {f"a{index}": f"$fullDocument.f{index}" for index in range(1_700)}
        uses = {f"v{index}": "$x" for index in range(1_700)}
        feed = _feed()
        feed.pipeline.bson = bson.encode(
            {"pipeline": [{"$set": {"x": fields}}, {"$set": {"y": {"$let": {"vars": uses, "in": number}}}}]}
        )
        await tenant.ask("Explain", wire.ExplainRequest(feed=feed))

    return [explain] * _TASKS


def _untaken(tenant: Tenant) -> list[Call]:
    """Make calls whose answers are not taken, with and without credentials."""
    page = subscriptions_pb2.ListSubscriptionsRequest(page_size=1_000).SerializeToString()
    calls = (
        ("/feedmux.v1.Subscriptions/ListSubscriptions", f"Bearer {tenant.task.key}", page),
        ("/grpc.health.v1.Health/Check", "", b""),
        ("/grpc.health.v1.Health/Watch", "", b""),
    )
    return [partial(_not_taken, tenant.task.address, *each) for each in calls for _ in range(2)]


async def _not_taken(address: str, method: str, authorization: str, message: bytes) -> None:
    """Make call after call on one connection, whose streams have a window of 0."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        headers = _headers(address, method, authorization)
        block = b"".join(b"\x00" + _hpack(name) + _hpack(value) for name, value in headers)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, struct.pack(">HI", 4, 0)))
        content = b"\x00" + len(message).to_bytes(4) + message
        for stream in range(1, 2_000, 2):
            writer.write(_frame(1, 4, stream, block) + _frame(0, 1, stream, content))
            await writer.drain()
            await asyncio.sleep(_PAUSE_S)
        async with asyncio.timeout(_CALL_S):
            while await reader.read(65536):
                pass
    except TimeoutError:
        pass
    finally:
        writer.close()


async def _create_large(tenant: Tenant) -> None:
    """Create the largest definitions that the tenant may store."""
    for number in range(tenant.task.definitions):
        feed = _large_feed(tenant, text=False, size=PIPELINE_BYTES - 4 * 1024)
        while True:
            try:
                await tenant.ask("CreateSubscription", _creation(f"listed-{os.getpid() % 1000}-{number}", feed))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "requests_per_s" in (error.details() or ""):
                    await asyncio.sleep(0.5)
                    continue
            break


def _lists(tenant: Tenant) -> list[Call]:
    """Request lists of many large subscriptions."""

    async def list_() -> None:
        await tenant.ask("ListSubscriptions", subscriptions_pb2.ListSubscriptionsRequest(page_size=1_000))

    return [list_] * _TASKS


def _positions(tenant: Tenant) -> list[Call]:
    """Send starts that MongoDB or the server rejects, on the feed that the quiet tenant reads."""
    resolved: list[bytes] = []

    async def flipped() -> None:
        if not resolved:
            resolved.append((await tenant.ask("ResolvePosition", _resolving(_history(tenant)))).position)
        position = bytearray(resolved[0])
        position[tenant.number() % len(position)] ^= 1 << tenant.number() % 8
        await tenant.subscribe(2, feed=_feed(), start=feed_pb2.Start(position=bytes(position)))

    async def token(field_: str) -> None:
        time_ = tenant.task.start
        data = f"82{time_.time:08X}{tenant.number() % 2**31:08X}2B022C0100296E5A1004{os.urandom(16).hex().upper()}"
        start = feed_pb2.Start()
        setattr(start, field_, bson.encode({"_data": f"{data}463C5F6964003C{os.urandom(12).hex().upper()}000004"}))
        await tenant.subscribe(2, feed=_feed(), start=start)

    async def acked() -> None:
        made = bson.encode({"_data": f"82{os.urandom(60).hex().upper()}"})
        last = wire.LastAcked(resume_token=made, epoch=1)
        await tenant.subscribe(2, subscription="large-True", last_acked=last, instance_id="x", takeover=True)

    async def future() -> None:
        start = feed_pb2.ClusterTime(seconds=2**32 - 1, increment=tenant.number() % 1000)
        await tenant.subscribe(2, feed=_feed(), start=feed_pb2.Start(start_at_operation_time=start))

    return [flipped, flipped, partial(token, "resume_after"), partial(token, "start_after"), acked, future]


def _comments(tenant: Tenant) -> list[Call]:
    """Send comments and collations of many elements."""

    async def explain(field_: str, size: int) -> None:
        await tenant.ask("Explain", wire.ExplainRequest(feed=_commented(field_, size)))

    async def create(field_: str, size: int) -> None:
        await tenant.ask("CreateSubscription", _creation("comments", _commented(field_, size)))

    return [
        partial(each, field_, size)
        for each in (explain, create)
        for field_ in ("comment", "collation")
        for size in REQUEST_BYTES
    ]


def _commented(field_: str, size: int) -> feed_pb2.Feed:
    feed = _feed()
    setattr(feed, field_, _document(field_, size))
    return feed


@cache
def _document(name: str, size: int) -> bytes:
    return bson.encode({name: [None] * ((size - 64) // 9)})


VECTORS: Final[dict[str, Callable[[Tenant], list[Call]]]] = {
    "pipelines": _pipelines,
    "costly": _costly,
    "opens": _opens,
    "ranges": _ranges,
    "json": _json,
    "unfinished": _unfinished,
    "lists": _lists,
    "positions": _positions,
    "comments": _comments,
    "arithmetic": _arithmetic,
    "untaken": _untaken,
}
_PREPARED: Final[dict[str, Callable[[Tenant], Awaitable[None]]]] = {"lists": _create_large}
