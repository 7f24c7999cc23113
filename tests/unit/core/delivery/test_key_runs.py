"""What one member has in hand; `test_key_ledger` shows the rest."""

from feedmux_server.core.delivery.key_runs import Hand


def test_what_is_stored_is_told_in_a_bounded_number_of_steps() -> None:
    hand = Hand()
    for number in range(5_000):
        hand.sent([number + 1])
    hand.sent([0])
    assert (hand.stored(2_000), hand.committed < 5_000, len(hand._history) <= 1_000) == (True, True, True)
    assert (hand.stored(5_001), hand.committed) == (True, 5_001)
