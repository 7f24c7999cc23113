"""What one member has in hand; `test_key_ledger` shows the rest."""

import random

from feedmux_server.core.delivery.key_runs import Hand
from tests.tables import over


def test_a_settle_of_many_events_has_parts() -> None:
    hand = Hand()
    hand.sent(range(10))
    hand.settle(3, 4)
    assert hand.part_of_settle(1, 10, 3) == (3, 3), "those that were settled before count, as they are visited"
    assert hand.part_of_settle(5, 7, 3) == (7, 3)
    assert hand.part_of_settle(9, 10, 3) == (10, 2)
    assert hand.part_of_settle(1, 11, 3) == (11, 0), "it is rejected as a whole"


def test_what_is_stored_is_told_in_a_bounded_number_of_steps() -> None:
    hand = Hand()
    for number in range(5_000):
        hand.sent([number + 1])
    hand.sent([0])
    assert (hand.stored(2_000), hand.committed < 5_000, len(hand._history) <= 1_000) == (True, True, True)
    assert (hand.stored(5_001), hand.committed) == (True, 5_001)


@over("seed", range(20))
def test_what_is_in_hand_after_any_settlements(seed: int) -> None:
    """As a dict by sequence has it, whose ranges would take as long as they are wide."""
    rng, hand, model, number = random.Random(seed), Hand(), dict[int, int](), 0
    for _ in range(300):
        if rng.random() < 0.1:
            numbers = list(range(number, number + rng.randint(1, 200)))
            number += len(numbers)
            hand.sent(numbers)
            model |= dict(zip(range(hand.sequence - len(numbers) + 1, hand.sequence + 1), numbers, strict=True))
        elif hand.sequence:
            first = rng.randint(1, hand.sequence)
            last = min(hand.sequence, first + rng.choice((0, 1, 10, 100, 1000)))
            if first in model and rng.random() < 0.3:
                assert hand.at(first) == model[first]
                count = min(rng.randint(1, 5), sum(each >= first for each in model))
                hand.take_back(first, count)
                for each in [each for each in model if each >= first][:count]:
                    del model[each]
            else:
                expected = [model.pop(each) for each in range(first, last + 1) if each in model]
                assert hand.settle(first, last) == expected
            assert (hand.at(first) is None) or model[first] == hand.at(first)
        assert hand.outstanding == len(model)
        assert hand.acked == min(model, default=hand.sequence + 1) - 1
    assert hand.disconnect() == list(model.values())
    assert hand.outstanding == 0
