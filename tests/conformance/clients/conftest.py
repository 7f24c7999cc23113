"""One world for all scenarios, and one runner for all scenarios of a language."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from feedmux_embedded import RedisServer, ReplicaSet
from tests.conformance.clients.runners import LANGUAGES, Runner, RunnerFailed, build, started
from tests.conformance.clients.worlds import World


@pytest_asyncio.fixture(scope="session")
async def world(
    mongo: ReplicaSet, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    made = World(mongo, redis_server, tmp_path_factory.mktemp("clients"))
    yield made
    await made.close()


class Runners:
    """Builds a runner once, and starts it again where a scenario has ended it."""

    def __init__(self) -> None:
        self._built: dict[str, RunnerFailed | None] = {}
        self._running: dict[str, tuple[Runner, AsyncExitStack]] = {}

    async def get(self, name: str) -> Runner:
        """A runner that runs. Skips where its tools are missing; raises RunnerFailed."""
        language = LANGUAGES[name]
        if language.missing:
            pytest.skip(f"no {' and no '.join(language.missing)} on this machine")
        if name not in self._built:
            try:
                await build(language)
                self._built[name] = None
            except RunnerFailed as failed:
                self._built[name] = failed
        if failure := self._built[name]:
            raise failure
        if name in self._running and not self._running[name][0].running:
            await self._running.pop(name)[1].aclose()
        if name not in self._running:
            stack = AsyncExitStack()
            self._running[name] = await stack.enter_async_context(started(language)), stack
        return self._running[name][0]

    async def discard(self, name: str) -> None:
        """Ends a runner that may be in an unknown state; the next scenario gets a fresh one."""
        if name in self._running:
            await self._running.pop(name)[1].aclose()

    async def close(self) -> None:
        await asyncio.gather(*(stack.aclose() for _, stack in self._running.values()))


@pytest_asyncio.fixture(scope="session")
async def runners() -> AsyncIterator[Runners]:
    made = Runners()
    yield made
    await made.close()
