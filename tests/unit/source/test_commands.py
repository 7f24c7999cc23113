"""Commands end within the time that a request may wait, and name the source."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from pymongo.errors import AutoReconnect, PyMongoError

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.source.commands import SourceCommands
from feedmux_server.telemetry.observer import NOBODY
from tests.virtual_time import in_virtual_time

WAIT_S = 1.5


async def answered(failure: PyMongoError | None) -> None:
    if failure is not None:
        raise failure
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("failure", "message", "after_s"),
    [(None, "did not answer within 1.5 s", WAIT_S), (AutoReconnect("canary"), "cannot be reached now", 0.0)],
)
@in_virtual_time
async def test_what_does_not_answer_is_unavailable(failure: PyMongoError | None, message: str, after_s: float) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    commands = SourceCommands("main", None, WAIT_S, NOBODY)  # type: ignore[arg-type]
    with pytest.raises(FeedmuxError, match=message) as caught:
        await commands.answer(answered(failure))
    assert loop.time() - began_s == after_s
    assert (caught.value.reason, caught.value.retry_after_s) == (ErrorReason.SOURCE_UNAVAILABLE, 2.0)
    assert "'main'" in caught.value.message
    assert "canary" not in caught.value.message
    assert await commands.answer(asyncio.sleep(0, "answer")) == "answer"


@in_virtual_time
async def test_a_client_that_takes_the_primary_for_a_deposed_one_for_long_is_replaced() -> None:
    """pymongo never accepts a primary of an older election than it knows, and a restored deployment counts anew."""

    class Client:
        def __init__(self, error: str) -> None:
            server = SimpleNamespace(error=AutoReconnect(error))
            self.topology_description = SimpleNamespace(server_descriptions=lambda: {("here", 1): server})
            self.closed = False

        async def close(self) -> None:
            self.closed = True

    stale, fresh = clients = (
        Client("primary marked stale due to electionId/setVersion mismatch"),
        Client("connection refused"),
    )
    new: Any = fresh
    old: Any = stale
    commands = SourceCommands("main", old, WAIT_S, NOBODY, lambda: new)
    for _ in range(14):
        with pytest.raises(FeedmuxError):
            await commands.answer(answered(None))
    assert commands.client is old, "an election takes up to ten seconds"
    for _ in range(30):
        with pytest.raises(FeedmuxError):
            await commands.answer(answered(None))
    assert commands.client is new
    assert [each.closed for each in clients] == [True, False]
