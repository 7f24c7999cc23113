"""A member of a group against scripts: settling, running handlers, reconnects, servers that do not host the group."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

import feedmux
from feedmux.v1 import change_feed_pb2 as pb
from tests.unit.client.scripted_server import (
    Call,
    Script,
    ScriptedServer,
    joined,
    runs,
)

QUICK: dict[str, Any] = {
    "backoff_first_s": 0.01,
    "backoff_most_s": 0.05,
    "open_timeout_s": 60.0,
    "close_timeout_s": 60.0,
}


@asynccontextmanager
async def serving(*scripts: Script) -> AsyncIterator[tuple[ScriptedServer, feedmux.AsyncClient]]:
    async with ScriptedServer(*scripts) as server:
        client = feedmux.AsyncClient(server.address, api_key="key", session=feedmux.SessionOptions(**QUICK))
        try:
            async with asyncio.timeout(60):
                yield server, client
        finally:
            await client.close()


def playing(*messages: pb.SubscribeResponse) -> Script:
    async def script(call: Call) -> None:
        await call.send(joined(), *messages)
        await call.until_closed()

    return script


def number(event: feedmux.MemberEvent) -> int:
    found: int = event.document["n"]
    return found


async def test_joins_settles_and_closes() -> None:
    async with serving(playing(runs(1, [1, 2], [3], attempts=[2, 1, 1]))) as (server, client):
        async with client.subscription("s").join() as member:
            one = await member.next()
            three = await member.next()
            assert (number(one), one.attempt, number(three), three.attempt) == (1, 2, 3, 1)
            three.ack()
            call = await server.call(0)
            await call.until_settled(3)
            one.nack(2.5, "busy")
            await call.until(lambda c: bool(c.failed))
        await call.until_closed()
        assert (call.open.subscription, call.open.join, call.open.credit.events) == ("s", True, 64)
        assert call.open.instance_id
        assert not call.open.HasField("last_acked")
        assert not call.credits
        assert not call.acks
        failed = call.failed[1]
        assert (failed.retry_after.ToMilliseconds(), failed.reason, failed.reject) == (2500, "busy", False)
        with pytest.raises(StopAsyncIteration):
            await member.next()


async def test_run_acks_fails_and_rejects_and_keeps_the_order_of_a_run() -> None:
    seen: list[int] = []

    async def handle(event: feedmux.MemberEvent) -> None:
        seen.append(number(event))
        match number(event):
            case 3:
                raise feedmux.RetryAfter(1.5, "later")
            case 5:
                raise feedmux.Reject("never")
            case 6:
                raise ValueError("x" * 2000)

    async with serving(playing(runs(1, [1, 2, 3, 4], [5], [6], [7]))) as (server, client):
        member = client.subscription("s").join()
        running = asyncio.create_task(member.run(handle, concurrency=2))
        call = await server.call(0)
        await call.until_settled(1, 2, 7)
        await call.until(lambda c: len(c.failed) == 3)
        await member.close()
        await running
        assert sorted(seen) == [1, 2, 3, 5, 6, 7]
        assert [each for each in seen if each < 5] == [1, 2, 3], "4 was returned with 3"
        assert call.settled == {1, 2, 7}
        assert (call.failed[3].reason, call.failed[3].retry_after.ToMilliseconds()) == ("later", 1500)
        assert (call.failed[5].reason, call.failed[5].reject) == ("never", True)
        assert call.failed[6].reason.startswith("ValueError: xxx")
        assert len(call.failed[6].reason) == 1024
        assert call.closed


async def test_a_reconnect_does_not_disturb_handlers() -> None:
    """1 is in progress, 3 is finished meanwhile, 2 and 4 wait: after the cut, each is handled once, and reported."""
    seen: list[int] = []
    gates = {each: asyncio.Event() for each in (1, 3)}

    async def first(call: Call) -> None:
        await call.send(joined(), runs(1, [1, 2], [3], [4]))
        while len(seen) < 2:
            await asyncio.sleep(0.01)
        await call.abort(grpc.StatusCode.UNAVAILABLE)

    async def second(call: Call) -> None:
        await call.send(joined())
        gates[3].set()
        while not done:
            await asyncio.sleep(0.01)
        await call.send(runs(1, [3], [1, 2], [4, 5]))
        await call.until_settled(1, 4, 5)
        gates[1].set()
        await call.until_closed()

    done: list[int] = []

    async def handle(event: feedmux.MemberEvent) -> None:
        seen.append(number(event))
        if number(event) in gates:
            await gates[number(event)].wait()
        done.append(number(event))

    async with serving(first, second) as (server, client):
        member = client.subscription("s").join(on_notice=lambda _: None)
        running = asyncio.create_task(member.run(handle, concurrency=2))
        call = await server.call(1)
        await call.until_settled(1, 2, 3, 4, 5)
        await member.close()
        await running
        assert sorted(seen) == [1, 2, 3, 4, 5]
        assert seen.index(2) > done.index(1)
        assert call.open.instance_id == server.calls[0].open.instance_id
