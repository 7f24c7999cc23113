"""The search for reference cycles: among young objects often, among all objects now and then."""

import asyncio
import gc
import weakref

import pytest

from feedmux_server import gc_tuning
from feedmux_server.gc_tuning import YOUNG, looking_for_cycles


class Node:
    def __init__(self) -> None:
        self.other: Node | None = None


def cycle() -> Node:
    one, other = Node(), Node()
    one.other, other.other = other, one
    return one


async def test_what_a_look_has_left_is_not_walked_again() -> None:
    threshold = gc.get_threshold()
    async with looking_for_cycles():
        await asyncio.sleep(0)
        before = gc.get_freeze_count()
        assert before > 0
        kept = [Node() for _ in range(2 * YOUNG)]
        assert gc.get_freeze_count() - before > YOUNG
        assert len(gc.get_objects(generation=1)) == len(gc.get_objects(generation=2)) == 0
        del kept
        assert gc.get_freeze_count() < before + YOUNG
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == threshold


async def test_cycles_of_young_objects_are_found_at_once() -> None:
    async with looking_for_cycles():
        await asyncio.sleep(0)
        lost = weakref.ref(cycle())
        _kept = [Node() for _ in range(2 * YOUNG)]
        assert lost() is None


async def test_cycles_of_old_objects_are_found_by_a_full_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_tuning, "_FULL_EVERY_S", 0.01)
    async with looking_for_cycles():
        await asyncio.sleep(0)
        held = cycle()
        lost = weakref.ref(held)
        kept = [Node() for _ in range(2 * YOUNG)]
        del held
        kept += [Node() for _ in range(gc.get_freeze_count() // 4)]
        await asyncio.sleep(0.1)
        assert lost() is not None, "there are not many more objects"
        kept += [Node() for _ in range(gc_tuning._GROWTH_MIN + YOUNG)]
        async with asyncio.timeout(60):
            while lost() is not None:
                await asyncio.sleep(0.01)
