"""What happens to events of a group whose processing has failed, and to what comes after them."""

import pytest

from feedmux_server.core.delivery.key_ledger import KeyLedger
from feedmux_server.core.delivery.key_runs import Hand
from feedmux_server.core.delivery.retry import HELD_MAX_S, REASONS_MAX, RetryPolicy
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from tests.tables import over
from tests.unit.core.delivery.group_events import number_of
from tests.unit.core.delivery.ledger_support import Group


def aside(ledger: KeyLedger) -> list[int]:
    return [number_of(each.event) for each in ledger.to_set_aside()]


def test_what_is_before_the_failed_event_in_its_run_stays_with_the_member() -> None:
    group, one, other = Group("a", "a", "a"), Hand(), Hand()
    group.runs(one)
    group.fail(one, 2, retry_after_s=5.0)
    group.fail(one, 3, retry_after_s=0.0)
    assert not group.ledger.due(10.0), "the first event is still at the member"
    group.ledger.disconnect(one)
    assert group.runs(one) == [[0]], "after a reconnect, the failed event waits on"
    group.ledger.settle(one, 1, 1)
    assert not group.ledger.due(4.9)
    assert group.ledger.due(5.0)
    assert group.runs(other) == [[1, 2]]


def test_each_event_waits_for_its_own_time() -> None:
    group, hand = Group("a", "a", "a"), Hand()
    group.runs(hand)
    group.fail(hand, 2, retry_after_s=9.0)
    group.fail(hand, 1, retry_after_s=1.0)
    assert (group.ledger.due(0.9), group.ledger.due(1.0)) == (False, True)
    assert group.runs(hand) == [[0]]
    group.ledger.settle(hand, hand.sequence, hand.sequence)
    assert (group.ledger.due(8.9), group.has_nothing_for(hand), group.ledger.due(9.0)) == (False, True, True)
    assert group.runs(hand) == [[1, 2]]


@over("lost", [False, True])
def test_what_is_before_a_failed_event_does_not_wait_with_it_when_its_member_leaves(*, lost: bool) -> None:
    group, one, other = Group("a", "a"), Hand(), Hand()
    group.runs(one)
    group.fail(one, 2, retry_after_s=5.0)
    group.ledger.give_back(one, lost=lost)
    taken = group.take(other)
    assert (list(map(number_of, taken.parts)), list(taken.attempts)) == ([0], [2] if lost else [])
    group.ledger.settle(other, 1, 1)
    assert (group.ledger.due(4.9), group.has_nothing_for(other)) == (False, True)
    group.ledger.due(5.0)
    assert group.take(other).attempts == [2]


def test_failing_twice_what_is_settled_and_what_was_never_sent() -> None:
    group, hand = Group("a", "b"), Hand()
    group.runs(hand)
    group.ledger.settle(hand, 1, 1)
    assert (group.fail(hand, 1), group.fail(hand, 2), group.fail(hand, 2)) == (0, 1, 0)
    assert group.ledger.settle(hand, 1, 2) == (0, 0), "what was taken back is settled by nobody"
    with pytest.raises(FeedmuxError) as caught:
        group.fail(hand, 3)
    assert (caught.value.reason, caught.value.field) == (ErrorReason.ACK_OUT_OF_RANGE, "settle.failed")
    group.ledger.due(HELD_MAX_S)
    assert group.take(hand).attempts == [2], "the second report counted nothing"


def test_the_wait_doubles_up_to_a_bound_with_jitter() -> None:
    policy = RetryPolicy(first_s=1.0, most_s=300.0)
    assert [policy.delay_s(failures, 0.0) for failures in (1, 2, 3, 9, 10, 10_000)] == [1, 2, 4, 256, 300, 300]
    assert policy.delay_s(2, 1.0) == 1.0
    group, hand = Group("a"), Hand()
    for wait_s in (1.0, 2.0, 4.0):
        group.runs(hand)
        group.fail(hand, hand.sequence)
        assert group.ledger.retries.due_s == wait_s
        group.ledger.due(wait_s)
    group.runs(hand)
    group.fail(hand, hand.sequence, retry_after_s=1e300)
    assert group.ledger.retries.due_s == HELD_MAX_S


def test_an_event_that_two_members_were_lost_with_is_alone() -> None:
    group, first, second, busy = Group("a", "a", "b", "c"), Hand(), Hand(), Hand()
    assert group.runs(first, runs_max=1) == [[0, 1]]
    assert group.runs(busy, runs_max=1) == [[2]]
    group.ledger.give_back(first, lost=True)
    assert group.runs(second, runs_max=1) == [[0, 1]]
    group.ledger.give_back(second, lost=True)
    assert (group.ledger.alone, group.ledger.ready) == (1, 1)
    assert group.runs(busy, runs_max=1) == [[3]], "who has something gets the others"
    free = Hand()
    taken = group.take(free)
    assert (list(map(number_of, taken.parts)), taken.attempts) == ([0], [3])
    assert (free.is_alone, group.has_nothing_for(free)) == (True, True)
    group.ledger.settle(free, 1, 1)
    assert group.runs(free) == [[1]]


def test_an_event_alone_comes_again_alone_to_the_same_instance() -> None:
    group = Group("a", "a", "b")
    for _ in range(2):
        lost = Hand()
        group.runs(lost, runs_max=1)
        group.ledger.give_back(lost, lost=True)
    hand = Hand()
    assert group.runs(hand) == [[0]]
    group.ledger.disconnect(hand)
    assert (group.runs(hand), group.has_nothing_for(hand)) == ([[0]], True)


def test_an_event_that_failed_too_often_or_was_rejected_is_set_aside() -> None:
    group, hand = Group("a", "a", "b", attempts_max=2), Hand("worker-1")
    group.runs(hand)
    group.fail(hand, 3, reject=True, reason="no such customer")
    group.fail(hand, 1, reason="first")
    group.ledger.due(1.0)
    group.runs(hand)
    before = group.ledger.settled_place()
    group.fail(hand, 4, reason="second")
    assert (group.has_nothing_for(hand), group.ledger.retries.due_s) == (True, None)
    rejected, failed = group.ledger.to_set_aside()
    assert (number_of(rejected.event), rejected.reasons, rejected.deliveries) == (2, ("no such customer",), 1)
    assert (number_of(failed.event), failed.reasons, failed.deliveries) == (0, ("first", "second"), 2)
    assert (failed.member, failed.key == rejected.key) == ("worker-1", False)
    assert aside(group.ledger) == [2, 0], "they stay until they are settled"
    assert group.ledger.settled_place() == before
    group.ledger.set_aside(failed.number)
    assert group.ledger.settled_place().is_after(before)
    assert group.runs(hand) == [[1]], "the key goes on"
    group.ledger.set_aside(rejected.number)
    group.ledger.set_aside(rejected.number)
    group.ledger.settle(hand, 1, hand.sequence)
    assert (group.paid, group.ledger.keys, aside(group.ledger)) == (0, {}, [])


def test_an_event_is_set_aside_only_when_it_is_the_first_of_its_key() -> None:
    group, hand = Group("a", "a", "a", attempts_max=5), Hand()
    group.runs(hand)
    group.fail(hand, 2, reject=True)
    assert aside(group.ledger) == []
    group.fail(hand, 1, retry_after_s=1.0)
    group.ledger.due(1.0)
    assert group.runs(hand) == [[0]]
    group.ledger.settle(hand, 4, 4)
    assert aside(group.ledger) == [1]


def test_losses_set_an_event_aside_only_after_it_was_alone() -> None:
    group = Group("a", "a", attempts_max=1)
    for expected in ([[0, 1]], [[0]]):
        lost = Hand()
        assert (aside(group.ledger), group.runs(lost)) == ([], expected)
        group.ledger.give_back(lost, lost=True)
    assert aside(group.ledger) == [0]


def test_the_last_reasons_are_kept_and_paid_for() -> None:
    group, hand = Group("a", "b"), Hand()
    before = group.paid
    for number in range(2 * REASONS_MAX):
        group.runs(hand)
        group.fail(hand, hand.sequence, retry_after_s=0.0, reason=f"{number}" * 1000)
        group.ledger.due(0.0)
    assert REASONS_MAX * 1000 < group.paid - before < 2 * REASONS_MAX * 1000
    group.may_grow = False
    full = group.paid
    group.runs(hand)
    group.fail(hand, hand.sequence, reason="more", reject=True)
    assert group.paid == full, "no memory for further reasons"
    (event,) = group.ledger.to_set_aside()
    assert event.reasons == tuple(f"{number}" * 1000 for number in range(REASONS_MAX, 2 * REASONS_MAX))
    group.ledger.release()
    assert group.paid == 0
