"""From the `server` part of a scenario to scripts of the scripted server."""

import asyncio
import base64
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import bson
import grpc
from bson import json_util

from feedmux.v1 import change_feed_pb2 as pb
from feedmux.v1 import feed_pb2
from tests.conformance.clients.scenario import one_step
from tests.unit.client import scripted_server as wire
from tests.unit.client.scripted_server import Call, Script

Message = pb.SubscribeResponse | bytes


def script(steps: Iterable[Any]) -> Script:
    """A script of these steps."""
    listed = list(steps)

    async def play(call: Call) -> None:
        player = _Player(call)
        for step in listed:
            await player.do(step)

    return play


@dataclass(slots=True)
class _Player:
    """One call. Sequences are counted, so that a scenario names them only where they are wrong."""

    call: Call
    sequence: int = 1

    async def do(self, step: Any) -> None:
        verb, argument = one_step(step)
        act: Callable[..., Awaitable[None]] | None = getattr(self, f"_{verb}", None)
        if act is not None:
            await (act() if argument is None else act(argument))
        else:
            await self.call.send(*self.messages(step))

    def messages(self, step: Any) -> list[Message]:
        """What a step sends."""
        verb, argument = one_step(step)
        make: Callable[..., list[Message]] = getattr(self, f"make_{verb}")
        if isinstance(argument, dict):
            inspect.signature(make).bind(**argument)
            return make(**argument)
        return make() if argument is None else make(argument)

    # What is done.

    async def _until(self, wanted: Any) -> None:
        if wanted == "closed":
            await self.call.until_closed()
            return
        for what, number in wanted.items():
            reached = _REACHED[what]
            await self.call.until(lambda call, reached=reached, number=number: reached(call) >= number)  # type: ignore[misc]

    async def _end(self, status: Any = "OK") -> None:
        if status == "OK":
            return
        given: dict[str, Any] = {"status": status} if isinstance(status, str) else status
        code = grpc.StatusCode[given["status"]]
        metadata = given.get("metadata") or {}
        await self.call.abort(code, given.get("reason") or "", given.get("retry_after_s"), **metadata)

    async def _mute(self) -> None:
        await asyncio.Event().wait()

    async def _newer(self, steps: list[Any]) -> None:
        for step in steps:
            await self.call.send(*(_with_unknown_fields(message) for message in self.messages(step)))

    # What is sent.

    def make_opened(self, at: int = 0, snapshot: bool = False, generation: int = 0, **fields: Any) -> list[Message]:
        message = wire.opened(at, **fields)
        if snapshot:
            message.opened.snapshot.state = feed_pb2.SnapshotStatus.STATE_RUNNING
            message.opened.snapshot.generation = generation
        return [message]

    def make_batch(
        self,
        numbers: list[int] | int,
        sequence: int | None = None,
        pad: int = 0,
        token_digits: int = 0,
        count: int | None = None,
        json: bool = False,
        snapshot: bool = False,
        documents: list[Any] | None = None,
        spread: bool = False,
        cut_bytes: int = 0,
    ) -> list[Message]:
        chosen = [numbers] if isinstance(numbers, int) else numbers
        if spread:
            return [each for number in chosen for each in self.make_batch(number, pad=pad, json=json)]
        first = self.sequence if sequence is None else sequence
        self.sequence = first + len(chosen)
        message = wire.batch(first, chosen, pad, token_digits, json=json)
        message.batch.snapshot = snapshot
        if documents is not None:
            given = [
                bson.encode({"_id": wire.token(number)} | json_util.loads(json_util.dumps(document)))
                for number, document in zip(chosen, documents, strict=True)
            ]
            message.batch.bson = b"".join(given)
        if count is not None:
            message.batch.event_count = count
        if cut_bytes:
            message.batch.bson = message.batch.bson[:-cut_bytes]
        return [message]

    def make_fragments(
        self,
        number: int,
        parts: int,
        size: int = 1000,
        only: list[int] | None = None,
        sequence: int | None = None,
        snapshot: bool = False,
    ) -> list[Message]:
        first = self.sequence if sequence is None else sequence
        made = wire.fragments(first, number, size, parts)
        for each in made:
            each.event_fragment.snapshot = snapshot
        chosen = list(range(parts)) if only is None else only
        if parts - 1 in chosen:
            self.sequence = first + 1
        return [made[index] for index in chosen]

    def make_progress(self, at: int) -> list[Message]:
        return [wire.progress(at)]

    def make_committed(self, sequence: int) -> list[Message]:
        return [pb.SubscribeResponse(committed=pb.Committed(delivery_sequence=sequence, position=b"P%d" % sequence))]

    def make_notice(self, kind: str, **fields: Any) -> list[Message]:
        notice = pb.Notice()
        told = getattr(notice, kind)
        told.SetInParent()
        for name, value in fields.items():
            described = told.DESCRIPTOR.fields_by_name[name]
            if described.enum_type is not None:
                value = described.enum_type.values_by_name[value].number
            match getattr(told, name):
                case feed_pb2.ClusterTime() as time:
                    time.seconds, time.increment = value
                case str() | bool() | int():
                    setattr(told, name, value)
                case bytes():
                    setattr(told, name, value.encode())
                case duration:
                    duration.FromMilliseconds(int(value * 1000))
        return [pb.SubscribeResponse(notice=notice)]

    def make_bytes(self, data: str) -> list[Message]:
        return [base64.b64decode(data)]

    def make_unknown_message(self) -> list[Message]:
        """A kind of message that does not exist yet."""
        return [_field(60, _UNKNOWN)]

    def make_unknown_notice(self) -> list[Message]:
        return [_field(6, _field(60, _UNKNOWN))]


_REACHED: dict[str, Callable[[Call], int]] = {
    "acked": lambda call: call.acked,
    "granted": lambda call: call.granted_events,
    "granted_bytes": lambda call: call.granted_bytes,
}


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


_UNKNOWN = (
    _varint(1000 << 3) + _varint(2**63 + 1)
    + _varint(1001 << 3 | 1) + bytes(8)
    + _field(1002, b"from a newer server")
    + _varint(1003 << 3 | 5) + bytes(4)
)  # fmt: skip
"""A field of each wire type, with numbers that feedmux does not use."""


def _with_unknown_fields(message: Message) -> bytes:
    """The message with unknown fields in it and in each message within it, after and before the known fields."""
    if isinstance(message, bytes):
        return message + _UNKNOWN
    kind = message.WhichOneof("message")
    assert kind is not None
    content = getattr(message, kind)
    for _, value in content.ListFields():
        if hasattr(value, "MergeFromString") and not hasattr(value, "append"):
            value.MergeFromString(_UNKNOWN)
    inner = _UNKNOWN + content.SerializeToString() + _UNKNOWN
    number = message.DESCRIPTOR.fields_by_name[kind].number
    return _UNKNOWN + _field(number, inner) + _UNKNOWN
