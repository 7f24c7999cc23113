"""A client beside a scripted server on the event loop of the test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import feedmux
from tests.unit.client.scripted_server import Script, ScriptedServer

QUICK: Final = feedmux.SessionOptions(
    backoff_first_s=0.01, backoff_most_s=0.05, ack_interval_s=0.02, open_timeout_s=60.0, close_timeout_s=60.0
)


@asynccontextmanager
async def serving(*scripts: Script) -> AsyncIterator[tuple[ScriptedServer, feedmux.AsyncClient]]:
    async with ScriptedServer(*scripts) as server:
        client = feedmux.AsyncClient(server.address, api_key="key", session=QUICK)
        try:
            async with asyncio.timeout(120):
                yield server, client
        finally:
            await client.close()


async def using(server: ScriptedServer, work: Callable[[feedmux.Client], Any]) -> Any:
    """Runs blocking work with a client in a thread."""

    def run() -> Any:
        with feedmux.Client(server.address, session=QUICK) as client:
            return work(client)

    async with asyncio.timeout(120):
        return await asyncio.to_thread(run)
