"""The dead letters of a group: their values, and the calls as coroutines, shared by `client` and `async_client`."""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import bson
from bson.timestamp import Timestamp
from google.protobuf import empty_pb2

from feedmux.api import Api
from feedmux.options import SESSION_CODEC
from feedmux.requests import time_value, timestamp_value
from feedmux.v1 import subscriptions_pb2

Key = Mapping[str, Any]
"""A `documentKey`, such as `{"_id": 5}`."""
_IDS_MAX: Final = 1_000
"""The most ids that the server accepts in a call."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that a group has set aside. `id` names it within its subscription."""

    id: str
    attempts: int
    """How often the event was delivered. 0: an earlier event of its key was a dead letter, and the key is
    quarantined."""
    reasons: tuple[str, ...]
    """What members said of the last failures, the last one last."""
    member: str
    """The member that had the event last."""
    cluster_time: Timestamp
    fail_time: datetime
    """When the event was set aside."""
    expire_time: datetime
    """When the server deletes the letter."""
    event_bytes: int
    withheld: bool
    """The event was delivered under other grants, or another feed, than the subscription has now: key, reasons and
    event are not shown."""
    raw_key: bytes = field(default=b"", repr=False)
    """The `documentKey`, BSON; empty if there is none, or if it has more than 1 KiB."""
    raw: bytes = field(default=b"", repr=False)
    """The event, BSON. Only `get` returns it."""

    @property
    def key(self) -> dict[str, Any] | None:
        """The `documentKey`, decoded."""
        return bson.decode(self.raw_key, SESSION_CODEC) if self.raw_key else None

    @property
    def document(self) -> dict[str, Any] | None:
        """The event, decoded."""
        return bson.decode(self.raw, SESSION_CODEC) if self.raw else None


@dataclass(frozen=True, slots=True)
class Replay:
    """What `replay` has found."""

    chosen: int
    """How many letters will be delivered again, of those that were not chosen before."""
    withheld: int
    """How many letters will not, because they are withheld. Not counted, and 0, where a key is given."""


class DeadLetterCalls:
    """The calls for the letters of one subscription."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self.name = name

    async def page(self, key: Key | None, page_size: int, page_token: str) -> tuple[list[DeadLetter], str]:
        request = subscriptions_pb2.ListDeadLettersRequest(name=self.name, page_size=page_size, page_token=page_token)
        if key is not None:
            request.key = bson.encode(key)
        answer = await self._call("ListDeadLetters", request, subscriptions_pb2.ListDeadLettersResponse)
        return [_value(each) for each in answer.dead_letters], answer.next_page_token

    async def every(self, key: Key | None, page_size: int) -> AsyncIterator[DeadLetter]:
        token = ""
        while True:
            page, token = await self.page(key, page_size, token)
            for each in page:
                yield each
            if not token:
                return

    async def get(self, id_: str) -> DeadLetter:
        request = subscriptions_pb2.GetDeadLetterRequest(name=self.name, id=bytes.fromhex(id_))
        return _value(await self._call("GetDeadLetter", request, subscriptions_pb2.DeadLetter))

    async def discard(self, ids: Iterable[str] | None, key: Key | None, everything: bool) -> int:
        kinds = subscriptions_pb2.DiscardDeadLettersRequest, subscriptions_pb2.DiscardDeadLettersResponse
        return sum([each.discarded async for each in self._for("DiscardDeadLetters", *kinds, ids, key, everything)])

    async def replay(self, ids: Iterable[str] | None, key: Key | None, everything: bool) -> Replay:
        kinds = subscriptions_pb2.ReplayDeadLettersRequest, subscriptions_pb2.ReplayDeadLettersResponse
        answers = [each async for each in self._for("ReplayDeadLetters", *kinds, ids, key, everything)]
        withheld = (each.withheld for each in answers)
        # With ids, each answer is for others; without, each counts the same ones.
        return Replay(sum(each.chosen for each in answers), sum(withheld) if ids is not None else max(withheld))

    async def _for(
        self, method: str, request_kind: Any, kind: Any, ids: Iterable[str] | None, key: Key | None, everything: bool
    ) -> AsyncIterator[Any]:
        """The answers for the letters that are named, each for a thousand at most."""
        if (ids is not None) + (key is not None) + everything != 1:
            raise ValueError("give either ids, or key, or everything=True")
        if ids is not None:
            if isinstance(ids, str):
                raise TypeError("ids is a list of ids")
            named = [bytes.fromhex(each) for each in ids]
            for begin in range(0, len(named), _IDS_MAX):
                request = request_kind(name=self.name)
                request.ids.ids.extend(named[begin : begin + _IDS_MAX])
                yield await self._call(method, request, kind)
            return
        request = request_kind(name=self.name)
        if key is not None:
            request.key = bson.encode(key)
        else:
            request.all.CopyFrom(empty_pb2.Empty())
        more = True
        while more:
            answer = await self._call(method, request, kind)
            yield answer
            more = answer.more

    async def _call(self, method: str, request: Any, kind: Any) -> Any:
        api = self._api
        return await api.transport.unary("Subscriptions", method, request, kind, api.settings.timeout_s)


def _value(message: subscriptions_pb2.DeadLetter) -> DeadLetter:
    return DeadLetter(
        id=message.id.hex(),
        attempts=message.attempts,
        reasons=tuple(message.reasons),
        member=message.member,
        cluster_time=timestamp_value(message.cluster_time),
        fail_time=time_value(message.fail_time),
        expire_time=time_value(message.expire_time),
        event_bytes=message.event_bytes,
        withheld=message.withheld,
        raw_key=message.key,
        raw=message.event,
    )
