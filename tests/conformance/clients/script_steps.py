"""Steps that check what the scripted server received."""

import asyncio
import base64
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import bson
from google.protobuf.json_format import MessageToDict

from feedmux.v1 import feed_pb2
from tests.conformance.clients.compare import same_value
from tests.conformance.clients.steps import REPLY_S, Steps
from tests.unit.client import scripted_server
from tests.unit.client.scripted_server import Call


class ScriptSteps(Steps):
    """Calls are numbered from 1."""

    async def call(
        self,
        number: int,
        *,
        ended: bool | None = None,
        same_instance: int | None = None,
        after_begin_s: float | None = None,
        after_end_s: float | None = None,
        after_open_s: float | None = None,
        after_heartbeat_s: float | None = None,
        **asked: Any,
    ) -> None:
        """Waits for the call of that number (from 1) and looks at its Open: what is named must be as said.

        `same_instance`: the number of a call with the same instance id. `after_…_s`: it came no earlier than so long
        after the call before it began, ended or had its last heartbeat, or after the client was told to open.
        """
        call = await self._stage.server.call(number - 1)
        if same_instance is not None:
            earlier = await self._stage.server.call(same_instance - 1)
            assert call.open.instance_id == earlier.open.instance_id != "", "another instance id"
        before = self._stage.server.calls[number - 2]
        if after_begin_s is not None:
            passed_s = call.began_s - before.began_s
            assert passed_s >= after_begin_s, f"{passed_s:.2f} s after the one before began"
        if after_end_s is not None:
            passed_s = call.began_s - before.ended_s
            assert before.ended_s, "the call before has not ended"
            assert passed_s >= after_end_s, f"only {passed_s:.2f} s after the one before ended"
        if after_open_s is not None:
            passed_s = call.began_s - self._records["s"].opening_s
            assert passed_s >= after_open_s, f"only {passed_s:.2f} s after the client was told to open"
        if after_heartbeat_s is not None:
            passed_s = call.began_s - before.heard_s
            assert passed_s >= after_heartbeat_s, f"only {passed_s:.2f} s after the last heartbeat"
        for name, wanted in asked.items():
            found = _ASKED[name](call)
            assert same_value(found, wanted), f"call {number}: {name} is {found!r}, not {wanted!r}"
        if ended:
            async with asyncio.timeout(self._patience_s):
                await call.ended.wait()

    async def calls(self, count: int) -> None:
        """There were so many calls, and no more."""
        found = len(self._stage.server.calls)
        assert found == count, f"{found} calls"

    async def spread(self, *, calls: int, at_least_s: float) -> None:
        """Waits for so many calls: from the first to the last of them so long has passed, or more."""
        last = await self._stage.server.call(calls - 1)
        passed_s = last.began_s - self._stage.server.calls[0].began_s
        assert passed_s >= at_least_s, f"{calls} calls in {passed_s:.2f} s"

    async def heartbeat(self, at: int) -> None:
        """The server sends progress, and the client gets it: on the newest call, which it may have just left."""
        position = base64.b64encode(b"P%d" % at).decode()
        calls = self._stage.server.calls
        async with asyncio.timeout(self._patience_s):
            while True:
                call, sent_s = calls[-1], time.monotonic()
                with suppress(Exception):  # whatever gRPC raises on a call that the client has left
                    await call.send(scripted_server.progress(at))
                while calls[-1] is call:
                    shown = await self._runner.ask("state", REPLY_S, session="s")
                    if shown["position"] == position:
                        call.heard_s = sent_s
                        return
                    await asyncio.sleep(0.01)

    async def acked(self, sequence: int, *, call: int = 1) -> None:
        """Waits until the server of that call has got this ack; never a higher one."""
        there = await self._stage.server.call(call - 1)
        async with asyncio.timeout(self._patience_s):
            await there.until_acked(sequence)
        assert there.acked == sequence, f"acked {there.acked}"
        assert there.acks == sorted(set(there.acks)), f"acks that are no news: {there.acks}"


_ASKED: dict[str, Callable[[Call], Any]] = {
    "subscription": lambda call: call.open.subscription,
    "feed": lambda call: MessageToDict(call.open.feed, preserving_proto_field_name=True),
    "start": lambda call: MessageToDict(call.open.start, preserving_proto_field_name=True),
    "start_position": lambda call: call.open.start.position.decode(),
    "format": lambda call: feed_pb2.Format.Name(call.open.format),
    "last_acked": lambda call: _last_acked(call),
    "last_acked_token_digits": lambda call: len(bson.decode(call.open.last_acked.resume_token)["_data"]),
    "last_acked_epoch": lambda call: call.open.last_acked.epoch,
    "takeover": lambda call: call.open.takeover,
    "credit_events": lambda call: call.open.credit.events,
    "credit_bytes": lambda call: call.open.credit.bytes,
    "message_bytes_max": lambda call: call.open.message_bytes_max,
    "heartbeat_s": lambda call: call.open.heartbeat_interval.ToMilliseconds() / 1000,
    "authorization": lambda call: call.metadata.get("authorization"),
    "route": lambda call: call.metadata.get("x-feedmux-route"),
    "closed": lambda call: call.closed,
}


def _last_acked(call: Call) -> int | None:
    """The number of the event at this position."""
    if not call.open.HasField("last_acked"):
        return None
    place = call.open.last_acked
    if place.WhichOneof("place") == "position":
        return int(place.position[1:])
    return int(str(bson.decode(place.resume_token)["_data"])[2:10], 16) - 1000
