"""Requests that no client sends: fields with nonsensical values, and bytes that are not a message.

Each call must end with a documented status that says why (`docs/protocol.md`), whatever the request contains. The
effect on other programs is judged as in any other run: they must not notice.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, Final

import bson
import grpc
import grpc.aio
from bson import json_util
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from feedmux.status import error_from_call
from feedmux.v1 import change_feed_pb2, operator_pb2, subscriptions_pb2
from feedmux_server.core.errors import STATUS, ErrorReason
from tests.sim.mongo import SimMongo
from tests.sim.network import Call, SimChannel
from tests.sim.programs import metadata_of
from tests.unit.core.feeds.pipeline_bounds.pipelines import ALLOWED, REFUSED

NAME: Final = "hostile"
"""The name of its own subscription: it tries to move others' subscriptions, and must not succeed."""
_MESSAGES_MAX: Final = 3
"""The number of messages that it reads from a stream."""
_CALL_S: Final = 5.0
_FEED: Final = "/feedmux.v1.ChangeFeed/"
_SUBSCRIPTIONS: Final = "/feedmux.v1.Subscriptions/"
_HEALTH: Final = "/grpc.health.v1.Health/"
_REFLECTION: Final = "/grpc.reflection.v1alpha.ServerReflection/"
_METHODS: Final[tuple[tuple[str, type[Message]], ...]] = (
    (f"{_FEED}Subscribe", change_feed_pb2.SubscribeRequest),
    (f"{_FEED}Watch", change_feed_pb2.WatchRequest),
    (f"{_FEED}ResolvePosition", change_feed_pb2.ResolvePositionRequest),
    (f"{_FEED}PlanRange", change_feed_pb2.PlanRangeRequest),
    (f"{_FEED}ReadRange", change_feed_pb2.ReadRangeRequest),
    (f"{_FEED}Explain", change_feed_pb2.ExplainRequest),
    (f"{_SUBSCRIPTIONS}CreateSubscription", subscriptions_pb2.CreateSubscriptionRequest),
    (f"{_SUBSCRIPTIONS}GetSubscription", subscriptions_pb2.GetSubscriptionRequest),
    (f"{_SUBSCRIPTIONS}ListSubscriptions", subscriptions_pb2.ListSubscriptionsRequest),
    (f"{_SUBSCRIPTIONS}UpdateSubscription", subscriptions_pb2.UpdateSubscriptionRequest),
    (f"{_SUBSCRIPTIONS}DeleteSubscription", subscriptions_pb2.DeleteSubscriptionRequest),
    (f"{_SUBSCRIPTIONS}SeekSubscription", subscriptions_pb2.SeekSubscriptionRequest),
    (f"{_SUBSCRIPTIONS}ListDeadLetters", subscriptions_pb2.ListDeadLettersRequest),
    (f"{_SUBSCRIPTIONS}GetDeadLetter", subscriptions_pb2.GetDeadLetterRequest),
    (f"{_SUBSCRIPTIONS}DiscardDeadLetters", subscriptions_pb2.DiscardDeadLettersRequest),
    ("/feedmux.v1.Operator/ListTenants", operator_pb2.ListTenantsRequest),
    (f"{_HEALTH}Check", health_pb2.HealthCheckRequest),
    (f"{_HEALTH}Watch", health_pb2.HealthCheckRequest),
    (f"{_REFLECTION}ServerReflectionInfo", reflection_pb2.ServerReflectionRequest),
)
_WEIGHTS: Final = [1 if "Delete" in method else 3 for method, _ in _METHODS]
_BROKEN: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
"""The codes of a broken connection: gRPC gives no reason."""
_TEXTS: Final = ("", "x", "a.b", "$cmd", "system.views", "x" * 300, "nul\0", "é" * 130, "\n", "..", "db")
_INTEGERS: Final = (0, 1, -1, 7, 1 << 16, (1 << 31) - 1)
_OF_GRPC: Final = frozenset({grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT})
"""The codes of health and reflection, as their own documentation specifies them."""
_METADATA: Final = (
    (),
    metadata_of("key-of-nobody"),
    (("authorization", "Basic eA=="),),
    metadata_of("x") * 2,
    metadata_of("a.b.c"),
)
_COUNTS: Final = (0, 2, *[1] * 20)
"""Numbers of messages to send where the method expects one."""
_ALWAYS: Final = frozenset({"feed", "subscription", "start", "to", "update_mask"})


class Hostile:
    """One program; `call` sends one request."""

    def __init__(self, rng: Random, mongo: SimMongo, positions: list[bytes]) -> None:
        """`positions` may come from any tenant and feed."""
        self._rng = rng
        self._mongo = mongo
        self._positions = positions
        self._usual: dict[str, Callable[[], Any]] = {
            "name": lambda: NAME,
            "subscription": lambda: NAME,
            "source": lambda: "main",
            "database": lambda: "db",
            "collection": lambda: rng.choice(("a", "b", "")),
            "extended_json": lambda: json_util.dumps(self._pipeline()),
            "bson": lambda: bson.encode({"pipeline": self._pipeline()}),
            "full_document": lambda: rng.choice(("", "default", "updateLookup", "whenAvailable", "required")),
            "full_document_before_change": lambda: rng.choice(("", "off", "whenAvailable", "required")),
            "position": self._position,
            "after": self._position,
            "until": self._position,
            "processed": lambda: self._position() if rng.random() < 0.3 else b"",
            "instance_id": lambda: NAME,
            "resume_token": self._token,
            "resume_after": self._token,
            "start_after": self._token,
            "seconds": lambda: (mongo.latest >> 32) + rng.randint(-60, 2),
            "increment": lambda: rng.randint(0, 2),
            "paths": lambda: rng.choice(("on_history_lost", "on_invalidate", "feed")),
            "page_token": lambda: NAME,
        }

    async def call(self, channel: SimChannel, key: str) -> Iterator[str]:
        """Make one call, mostly with the tenant's `key`. Returns what is wrong with the way the call ended."""
        rng = self._rng
        metadata = metadata_of(key) if rng.random() < 0.95 else rng.choice(_METADATA)
        [(method, kind)] = rng.choices(_METHODS, _WEIGHTS)
        call = channel.stream_stream(method)(metadata=metadata)
        try:
            async with asyncio.timeout(_CALL_S):
                for message in self._messages(kind):
                    await call.write(message)
                if rng.random() < 0.9:
                    call.half_close()
                await self._read(call, method)
        except TimeoutError:
            pass  # a valid call may last
        except grpc.aio.AioRpcError as error:
            return iter(self._judge(method, error))
        finally:
            call.cancel()
        return iter(())

    async def _read(self, call: Call, method: str) -> None:
        for _ in range(_MESSAGES_MAX):
            message = await call.read()
            if message is grpc.aio.EOF:
                return
            if method.endswith("ResolvePosition"):
                self._positions.append(change_feed_pb2.ResolvePositionResponse.FromString(message).position)

    def _judge(self, method: str, error: grpc.aio.AioRpcError) -> Iterator[str]:
        found = error_from_call(error)
        code = error.code()
        if not method.startswith("/feedmux.") and code in _OF_GRPC:
            return
        if not found.reason and code in _BROKEN:
            return
        wanted = STATUS.get(ErrorReason(found.reason)) if found.reason in STATUS else None
        if wanted != code.name or code is grpc.StatusCode.INTERNAL:
            yield f"Loud: {method} ended with {code.name}, reason {found.reason!r}: {error.details()}"

    # The messages.

    def _messages(self, kind: type[Message]) -> Iterator[bytes]:
        rng = self._rng
        is_session = kind is change_feed_pb2.SubscribeRequest
        for number in range(rng.randint(1, 4) if is_session else rng.choice(_COUNTS)):
            message = kind()
            if isinstance(message, change_feed_pb2.SubscribeRequest) and number == 0 and rng.random() < 0.9:
                self._fill(message.open)
            else:
                self._fill(message)
            for _ in range(rng.choice((0, 0, 0, 1, 2))):
                self._spoil(message)
            yield self._changed(message.SerializeToString())

    def _fill(self, message: Message) -> None:
        """Fill a message with the usual values; of mutually exclusive fields, only one."""
        rng = self._rng
        groups = set[str]()
        field: Any
        for field in message.DESCRIPTOR.fields:
            group = field.containing_oneof
            if group is not None:
                if group.name in groups:
                    continue
                groups.add(group.name)
                field = rng.choice(group.fields)
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                if field.name in _ALWAYS or group is not None or rng.random() < 0.3:
                    self._fill(_part(message, field))
            elif isinstance(message, Duration):
                message.seconds = rng.randint(1, 5)
            elif field.name in self._usual:
                _set(message, field, self._usual[field.name]())

    def _spoil(self, message: Message) -> None:
        """Give one field of the message, or of a part of it, an unusual value."""
        fields: list[Any] = list(message.DESCRIPTOR.fields)
        field = self._rng.choice(fields) if fields else None
        if field is None:
            return
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            _set(message, field, self._odd(field))
        elif self._rng.random() < 0.2:
            message.ClearField(field.name)
        else:
            self._spoil(_part(message, field))

    def _odd(self, field: Any) -> Any:
        rng = self._rng
        match field.type:
            case FieldDescriptor.TYPE_STRING:
                return rng.choice(_TEXTS)
            case FieldDescriptor.TYPE_BYTES:
                return rng.choice((b"", rng.randbytes(9), self._changed(self._position()), bytes(5_000)))
            case FieldDescriptor.TYPE_BOOL:
                return True
        return rng.choice(_INTEGERS)

    def _pipeline(self) -> list[Any]:
        rng = self._rng
        return rng.choice(([], rng.choice(ALLOWED), rng.choice(REFUSED)[0]))

    def _position(self) -> bytes:
        position = self._rng.choice(self._positions) if self._positions else b""
        return position if self._rng.random() < 0.8 else self._changed(position)

    def _token(self) -> bytes:
        entries = self._mongo.entries
        token = self._rng.choice(entries).token if entries else self._mongo.mark(self._mongo.latest)
        return token.raw if self._rng.random() < 0.8 else self._changed(token.raw)

    def _changed(self, data: bytes) -> bytes:
        """Return the data mostly unchanged; otherwise with other, fewer or more bytes."""
        rng = self._rng
        if rng.random() < 0.9 or not data:
            return data
        at = rng.randrange(len(data))
        return rng.choice(
            (
                data[:at],
                data[:at] + rng.randbytes(1) + data[at + 1 :],
                data[:at] + rng.randbytes(rng.randint(1, 9)) + data[at:],
                data + data[at:],
                rng.randbytes(at),
            )
        )


def _part(message: Message, field: Any) -> Any:
    """The message in a field; of a repeated field, one more."""
    part = getattr(message, field.name)
    if field.is_repeated:
        return part.add()
    part.SetInParent()
    return part


def _set(message: Message, field: Any, value: Any) -> None:
    """Set a field; do nothing if the field cannot hold the value."""
    with suppress(ValueError):
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
