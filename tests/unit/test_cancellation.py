"""A task that waits for MongoDB can be cancelled at any time, even where pymongo loses the cancellation."""

import asyncio
import gc
import socket
import weakref
from collections.abc import Awaitable, Callable

import pytest

from feedmux_embedded import mongod
from feedmux_server.cancellation import cancellable


async def losing(outcome: object) -> object:
    """Ends with `outcome` when it is cancelled."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        if isinstance(outcome, Exception):
            raise outcome from None
    return outcome


@pytest.mark.parametrize("guard", [cancellable, mongod.cancellable], ids=["server", "embedded"])
@pytest.mark.parametrize("outcome", ["a result", ValueError()])
async def test_a_lost_cancellation_is_raised(
    outcome: object, guard: Callable[[Awaitable[object]], Awaitable[object]]
) -> None:
    task = asyncio.ensure_future(guard(losing(outcome)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_lost_timeout_is_raised() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await cancellable(losing("a result"))


async def test_what_was_cancelled_before_may_still_ask() -> None:
    async def ends_in_order() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(await cancellable(asyncio.sleep(0.01, "closed")))
        return ""

    ended: list[str] = []
    task = asyncio.create_task(ends_in_order())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert ended == ["closed"]


async def test_a_timeout_within_is_no_cancellation() -> None:
    async def within() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            return "late"
        return ""

    assert await cancellable(within()) == "late"


class Reply:
    """What a driver holds when it fails."""


@pytest.mark.parametrize("fails", [True, False])
async def test_what_failed_or_was_cancelled_holds_no_reply(fails: bool) -> None:
    held: list[weakref.ref[Reply]] = []

    async def receive() -> None:
        reply = Reply()
        held.append(weakref.ref(reply))
        try:
            if fails:
                raise OSError
            await asyncio.sleep(60)
        except (OSError, asyncio.CancelledError) as error:
            known = error  # as in pymongo: the frame is held by the error, and the error by the frame
            raise RuntimeError from known

    before = gc.isenabled()
    gc.disable()
    try:
        task = asyncio.create_task(cancellable(receive()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert fails != task.cancelled()
        del task
        assert held[0]() is None
    finally:
        if before:
            gc.enable()


async def test_a_connection_that_was_being_opened_is_closed() -> None:
    async def connect() -> None:
        opening = socket.socket()
        found.append(opening)
        await asyncio.wait_for(asyncio.sleep(60), 60)

    found: list[socket.socket] = []
    task = asyncio.ensure_future(cancellable(connect()))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    assert [each.fileno() for each in found] == [-1]
