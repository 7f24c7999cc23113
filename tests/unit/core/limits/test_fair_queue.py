"""The fair queue between tenants."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.limits.fair_queue import FairQueue


def drained(queue: FairQueue[str]) -> list[str]:
    return [queue.get() for _ in range(len(queue))]


def test_owners_take_turns_however_much_they_have_put_in() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(4):
        queue.put("loud", f"l{number}")
    queue.put("quiet", "q0")
    assert queue.get() == "l0"
    assert queue.get() == "q0"
    queue.put("quiet", "q1")
    assert drained(queue) == ["l1", "q1", "l2", "l3"]
    with pytest.raises(IndexError):
        queue.get()


@given(st.lists(st.one_of(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), st.none())))
def test_order_within_an_owner_and_nobody_waits_longer_than_a_round(steps: list[tuple[str, int] | None]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    waiting: dict[str, deque[tuple[str, int]]] = {owner: deque() for owner in "abc"}
    passed_over = dict.fromkeys("abc", 0)
    for order, step in enumerate(steps):
        if step is not None:
            item = step[0], order
            queue.put(step[0], item)
            waiting[step[0]].append(item)
            if step[1] == 0:  # withdrawn again
                queue.remove(step[0], item)
                queue.remove(step[0], item)
                waiting[step[0]].pop()
        elif len(queue):
            owner, number = queue.get()
            assert waiting[owner].popleft() == (owner, number)
            for other in "abc":
                passed_over[other] = passed_over[other] + 1 if other != owner and waiting[other] else 0
                assert passed_over[other] <= 2
    assert len(queue) == sum(map(len, waiting.values()))
