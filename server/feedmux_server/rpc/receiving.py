"""Receives a call's request after the caller is known, and within a time limit.

gRPC calls a unary handler only when the whole request is in memory, whoever sent it. So every method is registered as
a method that receives a stream, which is the same on the wire, and nothing is read before the caller is known and
counted.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.rpc.status import Context

Requests = AsyncIterator[bytes]
Handler = Callable[[bytes, Context], Awaitable[bytes | None]]
StreamHandler = Callable[[Requests, Context], Awaitable[bytes | None]]
_RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits for the first message of a call."""

    bytes_max: int = 256 * 1024
    first_message_s: float = 10.0


async def first_message(requests: Requests, limits: RequestLimits) -> bytes | None:
    """Receive the first message; None if the client ended its side without a message.

    Raises QUOTA_EXCEEDED when the message does not arrive in time, and MESSAGE_INVALID when it is too large.
    """
    try:
        async with asyncio.timeout(limits.first_message_s):
            data = await anext(aiter(requests), None)
    except TimeoutError:
        raise FeedmuxError(
            ErrorReason.QUOTA_EXCEEDED,
            f"the request did not arrive within {limits.first_message_s:g} s, the server's limits.first_message_s",
            {"quota": "limits.first_message_s"},
            retry_after_s=_RETRY_AFTER_S,
        ) from None
    if data is not None and len(data) > limits.bytes_max:
        raise FeedmuxError(
            ErrorReason.MESSAGE_INVALID,
            f"the request is larger than {limits.bytes_max} bytes, the server's limits.request_bytes",
        )
    return data


def receive_one(
    handler: Handler,
    identify: Callable[[Context], Awaitable[object]],
    counted: Callable[[], AbstractContextManager[None]],
    limits: RequestLimits,
    received: Callable[[int], None] = lambda size: None,
) -> StreamHandler:
    """Make a handler of one request. `identify` raises for an unknown caller, `counted` for a caller with no call left;
    `received` gets the size of the request."""

    async def call(requests: Requests, context: Context) -> bytes | None:
        await identify(context)
        with counted():
            data = await first_message(requests, limits)
            if data is None:
                raise FeedmuxError(ErrorReason.MESSAGE_INVALID, "the call has no request")
            received(len(data))
            return await handler(data, context)

    return call


def receive_all(
    handler: StreamHandler,
    identify: Callable[[Context], Awaitable[object]],
    counted: Callable[[], AbstractContextManager[None]],
) -> StreamHandler:
    """Like `receive_one`, for a handler that reads its requests itself, beginning with `first_message`."""

    async def call(requests: Requests, context: Context) -> bytes | None:
        await identify(context)
        with counted():
            return await handler(requests, context)

    return call
