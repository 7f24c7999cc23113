"""Whether dependencies are available: noticed, shown and logged once; an unfit one ends the server."""

import asyncio
import logging
from typing import Any

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.readiness import ReadinessRules
from feedmux_server.jobs.readiness import Readiness
from tests.virtual_time import in_virtual_time

RULES = ReadinessRules()
EVERY_S, TIMEOUT_S = 1.0, 2.0


class Dependency:
    """Answers, fails, or is silent."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.silent = False

    async def check(self) -> None:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if self.failure is not None:
            raise self.failure


class Shown:
    def __init__(self) -> None:
        self.states: list[dict[str, bool]] = []

    def show(self, there: dict[str, bool]) -> None:
        if there not in self.states[-1:]:
            self.states.append(there)


def begin(*, there: bool = True) -> tuple[Dependency, Shown, "asyncio.Task[None]"]:
    dependency, shown = Dependency(), Shown()
    health: Any = shown
    readiness = Readiness(health, {"redis": dependency.check}, {"redis": there}, RULES)
    return dependency, shown, asyncio.create_task(readiness.run(EVERY_S, TIMEOUT_S))


@pytest.mark.parametrize("silent", [True, False])
@in_virtual_time
async def test_it_goes_and_comes_back(silent: bool, caplog: pytest.LogCaptureFixture) -> None:
    dependency, shown, task = begin()
    with caplog.at_level(logging.WARNING):
        dependency.silent = silent
        dependency.failure = FeedmuxError(ErrorReason.STATE_UNAVAILABLE, "refused")
        await asyncio.sleep(60.0)
        dependency.silent, dependency.failure = False, None
        await asyncio.sleep(60.0)
    task.cancel()
    await asyncio.wait([task])
    assert [each["redis"] for each in shown.states] == [True, False, True]
    why = "no answer within 2 s" if silent else "refused"
    assert [each.getMessage() for each in caplog.records] == [
        f"redis is unavailable: {why}",
        "redis is available again",
    ]


@in_virtual_time
async def test_an_unfit_one_is_no_unavailable_one() -> None:
    dependency, _, task = begin(there=False)
    dependency.failure = FeedmuxError(ErrorReason.SOURCE_UNSUITABLE, "standalone")
    with pytest.raises(FeedmuxError, match="standalone"):
        await task
