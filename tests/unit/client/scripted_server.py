"""A server that plays scripts: what a real one cannot be made to do (silence, broken promises, unknown fields).

Each Subscribe call takes the next script, an async function of a `Call`; when scripts run out the last one is played
again. Messages are made by the functions below, with events whose `_id` is a plausible resume token.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import bson
import grpc
import grpc.aio
from bson import json_util
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from feedmux.v1 import change_feed_pb2 as pb
from feedmux.v1 import feed_pb2

Script = Callable[["Call"], Awaitable[None]]
_CANONICAL = json_util.CANONICAL_JSON_OPTIONS


class Call:
    """One Subscribe call: what came up, and what goes down."""

    def __init__(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self._requests = requests
        self._context = context
        self.metadata: dict[str, str] = dict(context.invocation_metadata() or ())
        self.peer: str = context.peer()
        self.open = pb.Open()
        self.received: list[pb.SubscribeRequest] = []
        self.arrived = asyncio.Event()
        self.ended = asyncio.Event()
        """The script has come to its end, or the client has cancelled the call."""
        self.began_s = asyncio.get_running_loop().time()
        self.ended_s = 0.0
        """When the server began to end it: the client knows of it later. 0 before."""
        self.heard_s = self.began_s
        """When the last message was sent that the client is known to have got."""
        self._sending = asyncio.Lock()

    async def begin(self) -> None:
        """Reads Open, and from then on everything else beside the script."""
        first = pb.SubscribeRequest.FromString(await anext(self._requests))
        self.open = first.open

    async def listen(self) -> None:
        async for raw in self._requests:
            self.received.append(pb.SubscribeRequest.FromString(raw))
            self.arrived.set()

    async def send(self, *messages: pb.SubscribeResponse | bytes) -> None:
        async with self._sending:
            for message in messages:
                await self._context.write(message if isinstance(message, bytes) else message.SerializeToString())

    async def until(self, wanted: Callable[["Call"], bool]) -> None:
        """Waits until what has been received satisfies `wanted`."""
        while not wanted(self):
            self.arrived.clear()
            await self.arrived.wait()

    async def until_acked(self, sequence: int) -> None:
        await self.until(lambda call: call.acked >= sequence)

    async def until_settled(self, *sequences: int) -> None:
        await self.until(lambda call: call.settled >= set(sequences))

    async def until_closed(self) -> None:
        await self.until(lambda call: call.closed)

    @property
    def acks(self) -> list[int]:
        return [each.ack.delivery_sequence for each in self.received if each.HasField("ack")]

    @property
    def acked(self) -> int:
        return max(self.acks, default=0)

    @property
    def settles(self) -> list[pb.Settle]:
        return [each.settle for each in self.received if each.HasField("settle")]

    @property
    def settled(self) -> set[int]:
        return {
            sequence for settle in self.settles for each in settle.done for sequence in range(each.first, each.last + 1)
        }

    @property
    def failed(self) -> dict[int, pb.Settle.Failed]:
        return {each.delivery_sequence: each for settle in self.settles for each in settle.failed}

    @property
    def credits(self) -> list[tuple[int, int]]:
        return [(each.credit.events, each.credit.bytes) for each in self.received if each.HasField("credit")]

    @property
    def granted_events(self) -> int:
        return self.open.credit.events + sum(events for events, _ in self.credits)

    @property
    def granted_bytes(self) -> int:
        return self.open.credit.bytes + sum(size for _, size in self.credits)

    @property
    def closed(self) -> bool:
        return any(each.HasField("close") for each in self.received)

    async def abort(
        self, status: grpc.StatusCode, reason: str = "", retry_after_s: float | None = None, **metadata: str
    ) -> None:
        self.ended_s = asyncio.get_running_loop().time()
        await abort(self._context, status, reason, retry_after_s, **metadata)

    async def end(self, code: grpc.StatusCode, details: str, trailing: Sequence[tuple[str, str | bytes]]) -> None:
        """Ends the call with a status and trailing metadata as they are given."""
        self.ended_s = asyncio.get_running_loop().time()
        await self._context.abort(code, details, trailing_metadata=tuple(trailing))


async def abort(
    context: Any,
    status: grpc.StatusCode,
    reason: str = "",
    retry_after_s: float | None = None,
    message: str = "scripted",
    **metadata: str,
) -> None:
    """Ends a call with a status, and details as the real server gives them."""
    details = []
    if reason:
        details.append(error_details_pb2.ErrorInfo(reason=reason, domain="feedmux", metadata=metadata))
    if retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    rich = status_pb2.Status(code=code_pb2.Code.Value(status.name), message=message, details=packed)
    trailing = (("grpc-status-details-bin", rich.SerializeToString()),) if details else ()
    await context.abort(status, message, trailing_metadata=trailing)


class ScriptedServer:
    """Serves on a port of its own, on the running event loop."""

    def __init__(self, *scripts: Script, unary: dict[str, Callable[[bytes], Any]] | None = None) -> None:
        self._scripts = list(scripts)
        self._unary = unary or {}
        self.calls: list[Call] = []
        self.address = ""
        self.failures: list[BaseException] = []

    async def __aenter__(self) -> "ScriptedServer":
        self._server = grpc.aio.server(options=(("grpc.max_send_message_length", 72 * 1024 * 1024),))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)
        if self.failures:
            raise self.failures[0]

    async def call(self, index: int) -> Call:
        """The call of that number, when it has begun."""
        async with asyncio.timeout(60):
            while len(self.calls) <= index:
                await asyncio.sleep(0.01)
        return self.calls[index]

    async def subscribe(self, requests: AsyncIterator[bytes], context: Any) -> None:
        call = Call(requests, context)
        await call.begin()
        self.calls.append(call)
        listener = asyncio.create_task(call.listen())
        try:
            await self._scripts[min(len(self.calls), len(self._scripts)) - 1](call)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except AssertionError as error:
            self.failures.append(error)
            raise
        finally:
            listener.cancel()
            call.ended_s = call.ended_s or asyncio.get_running_loop().time()
            call.ended.set()

    async def unary(self, name: str, request: bytes, context: Any) -> bytes:
        answer = self._unary[name](request)
        if isinstance(answer, tuple):
            await abort(context, *answer)
        reply: bytes = answer.SerializeToString()
        return reply


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, server: ScriptedServer) -> None:
        self._server = server

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method.rsplit("/", 1)[1]
        if name == "Subscribe":
            return grpc.stream_stream_rpc_method_handler(self._server.subscribe)

        async def unary(request: bytes, context: Any) -> bytes:
            return await self._server.unary(name, request, context)

        return grpc.unary_unary_rpc_method_handler(unary)


def play(*messages: pb.SubscribeResponse | bytes) -> Script:
    """Sends these, then waits for Close, confirms nothing and ends with OK."""

    async def script(call: Call) -> None:
        await call.send(*messages)
        await call.until_closed()

    return script


def token(number: int, size: int = 0) -> dict[str, str]:
    """The resume token of event `number`, with at least `size` digits: its cluster time is (1000 + number, 1)."""
    return {"_data": f"82{1000 + number:08X}0000000129295A1004".ljust(size, "4")}


def feed_position(number: int) -> dict[str, Any]:
    """The position after event `number`."""
    return {
        "position": b"P%d" % number,
        "resume_token": bson.encode(token(number)),
        "cluster_time": feed_pb2.ClusterTime(seconds=1000 + number, increment=1),
    }


def event(number: int, pad: int = 0, token_digits: int = 0) -> bytes:
    """Event `number` as BSON."""
    return bson.encode({"_id": token(number, token_digits), "operationType": "insert", "n": number, "pad": "x" * pad})


def opened(
    at: int = 0, epoch: int = 1, at_last_acked: bool = False, heartbeat_s: float = 60, **limits: int
) -> pb.SubscribeResponse:
    heartbeat = duration_pb2.Duration()
    heartbeat.FromMilliseconds(int(heartbeat_s * 1000))
    return pb.SubscribeResponse(
        opened=pb.Opened(
            epoch=epoch,
            at_last_acked=at_last_acked,
            heartbeat_interval=heartbeat,
            limits=pb.Limits(**limits),
            routing_key="route-1",
            **feed_position(at),
        )
    )


def joined(members: int = 1, heartbeat_s: float = 60, epoch: int = 1, **limits: int) -> pb.SubscribeResponse:
    """The answer to a member of a group."""
    answer = opened(0, epoch, False, heartbeat_s, **limits)
    answer.opened.group.members = members
    return answer


def runs(first_sequence: int, *of: Sequence[int], attempts: Sequence[int] = ()) -> pb.SubscribeResponse:
    """A batch for a member of a group: the events of each run."""
    numbers = [number for run in of for number in run]
    return pb.SubscribeResponse(
        batch=pb.Batch(
            first_delivery_sequence=first_sequence,
            event_count=len(numbers),
            runs=[len(run) for run in of],
            attempts=attempts,
            bson=b"".join(map(event, numbers)),
        )
    )


def batch(
    first_sequence: int, numbers: Iterable[int], pad: int = 0, token_digits: int = 0, *, json: bool = False
) -> pb.SubscribeResponse:
    chosen = list(numbers)
    events = [event(number, pad, token_digits) for number in chosen]
    made = pb.Batch(first_delivery_sequence=first_sequence, event_count=len(chosen), **feed_position(chosen[-1]))
    if json:
        made.json.extend(json_util.dumps(bson.decode(each), json_options=_CANONICAL) for each in events)
    else:
        made.bson = b"".join(events)
    return pb.SubscribeResponse(batch=made)


def progress(at: int) -> pb.SubscribeResponse:
    return pb.SubscribeResponse(progress=pb.Progress(**feed_position(at)))


def fragments(sequence: int, number: int, size: int, parts: int) -> list[pb.SubscribeResponse]:
    data = event(number, size)
    step = -(-len(data) // parts)
    messages = []
    for index in range(parts):
        last = feed_position(number) if index + 1 == parts else {}
        part = pb.EventFragment(
            delivery_sequence=sequence,
            index=index,
            count=parts,
            data=data[index * step : (index + 1) * step],
            **last,
        )
        messages.append(pb.SubscribeResponse(event_fragment=part))
    return messages


async def invalidated(call: Call) -> None:
    """Sends two events, and ends the feed after them."""
    await call.send(opened(), batch(1, [1, 2]), progress(5))
    await call.abort(grpc.StatusCode.FAILED_PRECONDITION, "FEED_INVALIDATED")
