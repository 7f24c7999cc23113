"""A run repeats itself exactly, and the runs reach the situations for which they exist."""

import asyncio
import dataclasses
import gc
import itertools
from collections import deque
from collections.abc import Iterator
from contextvars import Context
from enum import Enum
from importlib import import_module
from pkgutil import walk_packages
from random import Random
from threading import Thread
from typing import Any, Final

import pytest

import feedmux_server
from feedmux_server.store import committer
from tests.sim.__main__ import digests, digests_elsewhere
from tests.sim.loop import SimLoop, process
from tests.sim.redis import SimRedis
from tests.sim.world import SMALL, World, simulate


@pytest.mark.parametrize(("size", "seeds"), [("small", 8), ("large", 1)])
def test_a_seed_gives_the_same_run_in_another_process(size: str, seeds: int) -> None:
    here = digests(0, seeds, size)
    assert here == digests_elsewhere(0, seeds, size)
    assert len(set(here)) == seeds


CONTAINERS: Final = (dict, list, set, deque, bytearray)


def state_in(module: Any) -> Iterator[str]:
    """The objects of a module that change while it is used: containers to be filled, counters, and unfrozen objects of
    the server's own classes."""
    for name, value in vars(module).items():
        kind = type(value)
        if isinstance(value, CONTAINERS):
            changes = not value and not name.startswith("__")
        elif dataclasses.is_dataclass(kind):
            changes = not kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        elif isinstance(value, itertools.count):
            changes = True
        else:
            own = kind.__module__.startswith("feedmux_server.") and not isinstance(value, (tuple, Enum))
            changes = own and bool(getattr(value, "__dict__", ()) or getattr(kind, "__slots__", ()))
        if changes:
            yield f"{module.__name__}.{name}"


def test_no_state_outlives_a_server() -> None:
    """The servers of a run share one Python process. They share no state, neither with each other nor with earlier
    runs."""
    names = [each.name for each in walk_packages(feedmux_server.__path__, "feedmux_server.")]
    modules = [import_module(name) for name in names if not name.endswith(".__main__")]
    assert [found for module in modules for found in state_in(module)] == []


def test_a_run_leaves_nothing_in_memory() -> None:
    """A long series of runs must not fill the machine."""
    before = _models_in_memory()  # of other tests
    for seed in range(8):
        simulate(seed, SMALL)
    assert _models_in_memory() <= before


def _models_in_memory() -> int:
    gc.collect()
    gc.collect()  # for what finalizers kept alive the first time
    return sum(type(found) in (SimLoop, SimRedis) for found in gc.get_objects())


def test_a_trace_does_not_change_the_run() -> None:
    lines: list[str] = []
    assert simulate(7, SMALL, lines.append).digest() == simulate(7, SMALL).digest()
    assert lines


def test_a_run_whose_numbers_another_thread_takes_fails() -> None:
    """Such a run could not be repeated."""
    world = World(7, SMALL)

    def draw_elsewhere() -> None:
        other = Thread(name="other", target=lambda: vars(committer)["random"].random())
        other.start()
        other.join()

    world.loop.call_at(1.0, draw_elsewhere)
    assert world.run().problems == ["the thread other drew from the run's numbers"]


ERRORS: Final = {
    "FeedInvalidated", "Fenced", "HistoryLost", "ProtocolError", "SubscriptionBusy", "SubscriptionNotFound",
    "TimelineForked",
}  # fmt: skip
RECORDS: Final = {
    "Written", "Opened", "Granted", "Delivered", "Acked", "Progress", "Committed", "Sought", "Lost", "Ended",
    "Joined", "Left", "Sent", "Started", "Handled", "SetAside", "Kept", "Skipped", "Restored", "Renewed",
}  # fmt: skip


SHOWING: Final = (
    "",
    "takeover",
    "lost and created again",
    "history lost",
    "protocol broken",
    "group",
    "MongoDB restored",
)
"""These scenarios soon cause the errors."""


def test_the_runs_reach_what_they_are_for() -> None:
    """Faults without any effect would prove nothing."""
    missing = ERRORS | RECORDS
    for seed, scenario in itertools.product(range(40), SHOWING):
        if not missing:
            break
        world = World(seed, SMALL, scenario=scenario)
        missing -= {type(record).__name__ for record in world.run().history}
        missing = missing.difference(*(user.met for user in (*world.users, *world.rivals)))
    assert not missing


def test_what_a_callback_in_an_empty_context_begins_ends_with_its_process() -> None:
    """The server has such callbacks, so that nothing in them outlives its cause."""
    loop, begun = SimLoop(Random(0)), list[asyncio.Task[Any]]()

    def begin(_: object) -> None:
        begun.append(loop.create_task(asyncio.sleep(1.0), context=Context()))

    async def run() -> None:
        process.set("server1.1")
        loop.create_task(asyncio.sleep(0)).add_done_callback(begin, context=Context())
        await asyncio.sleep(0.1)

    loop.run_until_complete(loop.create_task(run()))
    assert begun == loop.tasks_of("server1.1")
    loop.kill("server1.1")
    loop.bury()
    loop.close()
