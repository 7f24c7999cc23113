"""Pinned keys and letters in the ledger."""

from feedmux_server.core.delivery.key_ledger import PIN_BYTES, SetAside, Stored
from feedmux_server.core.delivery.key_runs import Hand
from tests.unit.core.delivery.group_events import DROPPED, number_of
from tests.unit.core.delivery.ledger_support import Group


def following(group: Group) -> list[SetAside]:
    return group.ledger.to_follow(events_max=100, bytes_max=1 << 20)


def aside(group: Group, *, pin: bool) -> SetAside:
    """Reject the first event, and set it aside."""
    hand = Hand()
    group.runs(hand)
    group.fail(hand, 1, reject=True)
    group.ledger.settle(hand, 2, hand.sequence)
    (event,) = group.ledger.to_set_aside()
    group.ledger.set_aside(event.number, pin=pin)
    return event


def stored(*events: SetAside) -> list[Stored]:
    return [Stored(bytes([number_of(each.event)]) * 16, each.event, each.deliveries) for each in events]


def test_what_follows_in_a_pinned_key_is_set_aside_and_delivered_again_before_what_is_later() -> None:
    group, hand = Group("a", "b", "a", "a", "b", per_chunk=1, reads=2), Hand()
    first = aside(group, pin=True)
    group.read(*group.chunks[2:])
    assert group.runs(hand) == [[4]], "other keys go their way"
    later = following(group)
    assert [number_of(each.event) for each in later] == [2, 3]
    assert [each.deliveries for each in (first, *later)] == [1, 0, 0]
    group.ledger.set_aside(later[0].number)
    assert first.key is not None
    group.ledger.replay(first.key, stored(first, later[0]), 0.0, last=True)
    taken = group.take(hand)
    assert (list(map(number_of, taken.parts)), taken.runs, taken.attempts) == ([0, 2], [2], [2, 1])
    assert not following(group), "the key is pinned no longer"
    place = group.ledger.settled_place()
    group.ledger.settle(hand, 2, 3)
    assert group.has_nothing_for(hand), "the letters are not deleted yet"
    assert group.ledger.settled_place() == place, "letters have no part in the position"
    group.ledger.deleted(list(group.ledger.replayed))
    assert group.runs(hand) == [[3]]
    group.ledger.settle(hand, 1, 4)
    assert (group.paid, group.ledger.keys, group.ledger.pinned) == (0, {}, set())


def test_unpinned_keys_deliver_what_waited() -> None:
    group, hand = Group("a", "a", per_chunk=1, reads=1), Hand()
    key = aside(group, pin=True).key
    assert key is not None
    assert group.paid == PIN_BYTES
    group.read(*group.chunks[1:])
    group.ledger.unpin(key)
    assert group.runs(hand) == [[1]]
    group.ledger.release()
    assert group.paid == 0


def test_a_settled_letter_counts_as_stored_when_it_is_deleted() -> None:
    group, hand = Group("a"), Hand()
    first = aside(group, pin=True)
    assert first.key is not None
    before = group.ledger.acked
    group.ledger.replay(first.key, stored(first), 0.0, last=True)
    group.runs(hand)
    group.ledger.settle(hand, 1, 1)
    assert (group.ledger.acked, list(group.ledger.replayed)) == (before, [before])
    group.ledger.deleted([before])
    assert group.ledger.acked == before + 1


def test_an_event_without_a_key_waits_for_letters_and_they_for_it() -> None:
    group, hand = Group("a", DROPPED, "a", per_chunk=1, reads=1), Hand()
    first = aside(group, pin=False)
    assert first.key is not None
    group.ledger.replay(first.key, stored(first), 0.0)
    group.read(*group.chunks[1:])
    assert not group.ledger.may_replay
    assert group.runs(hand) == [[0]]
    group.ledger.settle(hand, 1, 1)
    assert group.runs(hand) == [[1]]
    assert not group.ledger.may_replay, "an event without a key is alone"
