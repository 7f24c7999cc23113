"""feedmux as seen on the wire, by the generated stubs alone: what the tests send, receive and are refused.

A `Receiver` checks on the way what no session may ever do: skip or repeat a delivery sequence, send a message over
the stated limit, or put anything between the fragments of an event.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import bson
import grpc
import grpc.aio
from bson.codec_options import CodecOptions
from google.protobuf import any_pb2, duration_pb2, empty_pb2, field_mask_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc.aio import EOF

from feedmux.target import Tls
from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import (
    change_feed_pb2_grpc,
    feed_pb2,
    operator_pb2,
    operator_pb2_grpc,
    subscriptions_pb2,
    subscriptions_pb2_grpc,
)

T = TypeVar("T")

PATIENCE_S = 60.0
MANY = wire.Credit(events=1_000_000, bytes=1 << 30)
"""More than any test sends."""
NO_LIMIT = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
_STATUS_LOST = "Internal error from Core"
"""What gRPC for Python says of a message to a stream whose end has come, and whose status it has not read yet. It keeps
that as the call's status, so the server's own is not to be had any more."""
FIXED_WINDOW = (("grpc.http2.bdp_probe", 0),)
"""HTTP/2's window stays as small as gRPC begins with: 64 KiB, or the message that is read."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The end of a call."""

    code: str
    message: str
    reason: str = ""
    domain: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    retry_s: float | None = None
    details: frozenset[str] = frozenset()
    """Short names of the `google.rpc` messages that came with it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it came."""

    sequence: int
    data: bytes
    """BSON document, or JSON text in UTF-8."""
    fragments: int = 0

    @property
    def document(self) -> dict[str, Any]:
        """Names that are not UTF-8, which MongoDB may hold, have replacements in them."""
        return bson.decode(self.data, CodecOptions(unicode_decode_error_handler="replace"))

    @property
    def n(self) -> int:
        """`fullDocument.n`."""
        return int(self.document["fullDocument"]["n"])


def refusal(error: grpc.aio.AioRpcError) -> Refused:
    """The status with what `google.rpc` details say."""
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers.get("grpc-status-details-bin", b""))
    info, retry, names = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), set()
    retry_s: float | None = None
    for detail in status.details:
        assert isinstance(detail, any_pb2.Any)
        names.add(detail.type_url.rpartition(".")[2])
        detail.Unpack(info)
        if detail.Unpack(retry):
            retry_s = retry.retry_delay.ToMilliseconds() / 1000
    code, message = error.code().name, error.details() or ""
    return Refused(code, message, info.reason, info.domain, dict(info.metadata), retry_s, frozenset(names))


async def refused(call: Awaitable[Any]) -> Refused:
    """The error with which the server rejects `call`."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await call
    except grpc.aio.AioRpcError as error:
        return refusal(error)
    raise AssertionError(f"not refused: {type(answer).__name__}")


class Receiver:
    """The downward half of Watch or Subscribe."""

    def __init__(self, call: Any, message_bytes_max: int = 1024 * 1024) -> None:
        self.call = call
        self.notices: list[wire.Notice] = []
        self.committed: list[wire.Committed] = []
        self.progress: list[wire.Progress] = []
        self.batches: list[wire.Batch] = []
        self.position = b""
        """Behind everything received so far."""
        self.resume_token = b""
        self.received = 0
        self.taken = 0
        self._message_bytes_max = message_bytes_max
        self._pending: list[Event] = []
        self._parts: list[wire.EventFragment] = []
        self._reading: asyncio.Future[Any] | None = None

    async def message(self, timeout_s: float = PATIENCE_S) -> Any:
        """The next message, recorded; EOF at an end with OK.

        Raises AioRpcError at any other end, TimeoutError on silence.
        """
        # Cancelling a read would cancel the call, so a task that outlives our patience does it.
        if self._reading is None:
            self._reading = asyncio.ensure_future(self.call.read())
        await asyncio.wait([self._reading], timeout=timeout_s)
        if not self._reading.done():
            raise TimeoutError(f"nothing came for {timeout_s} s, after {self.received} events")
        reading, self._reading = self._reading, None
        message = reading.result()
        if message is EOF:
            return EOF
        assert message.ByteSize() <= self._message_bytes_max
        kind = message.WhichOneof("message")
        if kind is None:
            return message  # the heartbeat of ReadRange
        content = getattr(message, kind)
        assert not self._parts or kind == "event_fragment", f"{kind} between fragments"
        match kind:
            case "opened" | "progress":
                self.position, self.resume_token = content.position, content.resume_token
                if kind == "progress":
                    self.progress.append(content)
            case "batch":
                self._batch(content)
            case "event_fragment":
                self._fragment(content)
            case "committed":
                self.committed.append(content)
            case "notice":
                self.notices.append(content)
        return message

    async def opened(self) -> wire.Opened:
        message = await self.message()
        assert message is not EOF
        assert message.WhichOneof("message") == "opened"
        opened: wire.Opened = message.opened
        return opened

    async def take(self, count: int, timeout_s: float = PATIENCE_S) -> list[Event]:
        """The next `count` events."""
        await self.until(lambda: len(self._pending) >= count, timeout_s)
        taken, self._pending = self._pending[:count], self._pending[count:]
        self.taken += count
        return taken

    async def numbers(self, count: int, timeout_s: float = PATIENCE_S) -> list[int]:
        """`fullDocument.n` of the next `count` events."""
        return [event.n for event in await self.take(count, timeout_s)]

    async def rest(self) -> list[Event]:
        """All events up to an end with OK."""
        assert await self.end() == Refused("OK", "")
        return await self.take(len(self._pending))

    async def until(self, condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        """Receives until `condition` holds."""
        end_s = time.monotonic() + timeout_s
        while not condition():
            message = await self.message(max(0.0, end_s - time.monotonic()))
            assert message is not EOF, f"ended after {self.received} events"

    async def during(self, duration_s: float) -> list[Event]:
        """All events that come within so long."""
        end_s = time.monotonic() + duration_s
        while (left_s := end_s - time.monotonic()) > 0:
            with suppress(TimeoutError):
                assert await self.message(left_s) is not EOF
        return await self.take(len(self._pending))

    async def end(self, timeout_s: float = PATIENCE_S) -> Refused:
        """Receives until the stream ends."""
        try:
            while await self.message(timeout_s) is not EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return refusal(error)
        return Refused("OK", "")

    def cancel(self) -> None:
        self.call.cancel()

    def _batch(self, batch: wire.Batch) -> None:
        assert batch.first_delivery_sequence == self.received + 1
        data = [text.encode() for text in batch.json] or split(batch.bson)
        assert len(data) == batch.event_count > 0
        self.batches.append(batch)
        for each in data:
            self.received += 1
            self._pending.append(Event(self.received, each))
        self.position, self.resume_token = batch.position, batch.resume_token

    def _fragment(self, fragment: wire.EventFragment) -> None:
        assert fragment.delivery_sequence == self.received + 1
        assert fragment.index == len(self._parts)
        self._parts.append(fragment)
        assert (fragment.position != b"") == (fragment.index == fragment.count - 1)
        if fragment.index == fragment.count - 1:
            self.received += 1
            data = b"".join(part.data for part in self._parts)
            self._pending.append(Event(self.received, data, len(self._parts)))
            self._parts = []
            self.position, self.resume_token = fragment.position, fragment.resume_token


class Session(Receiver):
    """Subscribe."""

    async def send(self, **message: Any) -> None:
        await self.call.write(wire.SubscribeRequest(**message))

    async def credit(self, events: int, size: int = 1 << 30) -> None:
        await self.send(credit=wire.Credit(events=events, bytes=size))

    async def ack(self, sequence: int) -> None:
        await self.send(ack=wire.Ack(delivery_sequence=sequence))

    async def close(self) -> None:
        """Close, and wait for the end."""
        await self.send(close=wire.Close())
        assert await self.end() == Refused("OK", "")

    async def ack_and_wait(self, sequence: int) -> None:
        """Wait until the server reports that it is stored."""
        await self.ack(sequence)
        await self.until(lambda: any(each.delivery_sequence >= sequence for each in self.committed))


class Api:
    """One client of one server. `async with Api(…) as api`."""

    def __init__(
        self,
        data: int,
        operator: int,
        health: int,
        key: str = "",
        tls: Tls | None = None,
        options: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.tls = tls
        self._options = (
            *NO_LIMIT,
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            *options,
        )
        self.data_port, self.operator_port, self.health_port = data, operator, health
        self.metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {key}"),) if key else ()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.channel = await self._open(self.data_port)
        self.feeds = change_feed_pb2_grpc.ChangeFeedStub(self.channel)
        self.control = subscriptions_pb2_grpc.SubscriptionsStub(self.channel)
        self.operator_channel = await self._open(self.operator_port)
        self.operator = operator_pb2_grpc.OperatorStub(self.operator_channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _open(self, port: int) -> grpc.aio.Channel:
        if self.tls is None:
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=self._options)
        else:
            named = ("grpc.ssl_target_name_override", self.tls.server_name or "localhost")
            channel = grpc.aio.secure_channel(
                f"127.0.0.1:{port}", self.tls.credentials(), options=(*self._options, named)
            )
        return await self._stack.enter_async_context(channel)

    def with_key(self, key: str) -> "Api":
        return Api(self.data_port, self.operator_port, self.health_port, key, self.tls)

    def watch(self, feed: feed_pb2.Feed, start: feed_pb2.Start | None = None, **fields: Any) -> Receiver:
        request = wire.WatchRequest(feed=feed, start=start, **fields)
        limit = request.message_bytes_max or 1024 * 1024
        return Receiver(self.feeds.Watch(request, metadata=self.metadata), limit)

    async def session(self, subscription: str = "", **fields: Any) -> Session:
        """Subscribe with its Open sent."""
        if subscription:
            fields["subscription"] = subscription
        request = wire.Open(**fields)
        while True:
            session = Session(self.feeds.Subscribe(metadata=self.metadata), request.message_bytes_max or 1024 * 1024)
            try:
                await session.send(open=request)
            except grpc.aio.AioRpcError as error:  # already rejected: the next read raises the error
                if error.details() == _STATUS_LOST:
                    continue
            return session

    async def open(self, subscription: str = "", **fields: Any) -> Session:
        """Subscribe, opened, with all the credit a test needs."""
        session = await self.session(subscription, **{"credit": MANY, **fields})
        await session.opened()
        return session

    async def create(
        self, name: str, feed: feed_pb2.Feed, start: feed_pb2.Start | None = None, **fields: Any
    ) -> subscriptions_pb2.Subscription:
        subscription = subscriptions_pb2.Subscription(name=name, feed=feed, **fields)
        request = subscriptions_pb2.CreateSubscriptionRequest(subscription=subscription, start=start)
        return await self._unary(self.control.CreateSubscription, request, subscriptions_pb2.Subscription)

    async def get(self, name: str) -> subscriptions_pb2.Subscription:
        request = subscriptions_pb2.GetSubscriptionRequest(name=name)
        return await self._unary(self.control.GetSubscription, request, subscriptions_pb2.Subscription)

    async def page(self, page_size: int = 0, page_token: str = "") -> subscriptions_pb2.ListSubscriptionsResponse:
        request = subscriptions_pb2.ListSubscriptionsRequest(page_size=page_size, page_token=page_token)
        return await self._unary(self.control.ListSubscriptions, request, subscriptions_pb2.ListSubscriptionsResponse)

    async def update(self, paths: Sequence[str] = (), **fields: Any) -> subscriptions_pb2.Subscription:
        request = subscriptions_pb2.UpdateSubscriptionRequest(
            subscription=subscriptions_pb2.Subscription(**fields), update_mask=field_mask_pb2.FieldMask(paths=paths)
        )
        return await self._unary(self.control.UpdateSubscription, request, subscriptions_pb2.Subscription)

    async def delete(self, name: str, **fields: Any) -> None:
        request = subscriptions_pb2.DeleteSubscriptionRequest(name=name, **fields)
        await self._unary(self.control.DeleteSubscription, request, empty_pb2.Empty)

    async def seek(self, name: str, to: feed_pb2.Start) -> subscriptions_pb2.Subscription:
        request = subscriptions_pb2.SeekSubscriptionRequest(name=name, to=to)
        return await self._unary(self.control.SeekSubscription, request, subscriptions_pb2.Subscription)

    async def resolve(self, feed: feed_pb2.Feed, start: feed_pb2.Start) -> wire.ResolvePositionResponse:
        request = wire.ResolvePositionRequest(feed=feed, start=start)
        return await self._unary(self.feeds.ResolvePosition, request, wire.ResolvePositionResponse)

    async def explain(self, **fields: Any) -> wire.ExplainResponse:
        return await self._unary(self.feeds.Explain, wire.ExplainRequest(**fields), wire.ExplainResponse)

    async def plan(self, **fields: Any) -> wire.PlanRangeResponse:
        """PlanRange; `wait` in seconds."""
        fields = {"events_max": 1_000_000, "bytes_max": 1 << 30, **fields, "wait": seconds(fields.get("wait", 0))}
        return await self._unary(self.feeds.PlanRange, wire.PlanRangeRequest(**fields), wire.PlanRangeResponse)

    def read_range(self, **fields: Any) -> Receiver:
        request = wire.ReadRangeRequest(**fields)
        limit = request.message_bytes_max or 1024 * 1024
        return Receiver(self.feeds.ReadRange(request, metadata=self.metadata), limit)

    async def streams(self, scope: str = "") -> list[operator_pb2.SharedStream]:
        """The shared streams of `scope`."""
        response = await self._unary(
            self.operator.ListSharedStreams,
            operator_pb2.ListSharedStreamsRequest(),
            operator_pb2.ListSharedStreamsResponse,
        )
        return [each for each in response.shared_streams if scope in ("", each.scope)]

    async def raw(self, method: str, data: bytes) -> bytes:
        """A unary call with bytes that need not be a message."""
        return await self._unary(self.channel.unary_unary(method), data, bytes)

    async def _unary(self, method: Any, request: Any, kind: type[T]) -> T:
        answer = await method(request, metadata=self.metadata, timeout=PATIENCE_S)
        assert isinstance(answer, kind)
        return answer


def feed(
    database: str = "", collection: str = "", pipeline: str = "", source: str = "main", **fields: Any
) -> feed_pb2.Feed:
    made = feed_pb2.Feed(source=source, database=database, collection=collection, **fields)
    if pipeline:
        made.pipeline.extended_json = pipeline
    return made


def at(**fields: Any) -> feed_pb2.Start:
    return feed_pb2.Start(**fields)


def seconds(value: float) -> duration_pb2.Duration:
    made = duration_pb2.Duration()
    made.FromMilliseconds(int(value * 1000))
    return made


EARLIEST = at(earliest=feed_pb2.Earliest())
LATEST = at(latest=feed_pb2.Latest())


def split(data: bytes) -> list[bytes]:
    """Concatenated BSON documents."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "little")
        found.append(data[:size])
        data = data[size:]
    return found
