"""What the members of a group get, and what is settled by that."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

import bson
import pytest

from feedmux_server.core.delivery import key_ledger
from feedmux_server.core.delivery.ack_tracker import ENTRIES_AT_ONCE
from feedmux_server.core.delivery.key_ledger import EVENT_BYTES, PIN_BYTES, RUN_MAX, SPAN_BYTES, SetAside, Stored
from feedmux_server.core.delivery.key_runs import Hand, Runs
from feedmux_server.core.delivery.retry import Failure
from feedmux_server.core.delivery.taken import NeedsRoom
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.chunk import Chunk, event_id
from feedmux_server.core.positions.ahead import HOLE_BYTES, HOLES_MAX, Ahead, mark_of, unpacked
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.sim.events import BEGIN, event_token, without_reachable_id
from tests.tables import over
from tests.unit.core.delivery.group_events import DROPPED, START, chunks_of, group_event, number_of, ordered
from tests.unit.core.delivery.ledger_support import Group


def test_all_waiting_events_of_a_key_are_one_run() -> None:
    group, one, other = Group("a", "b", "a", "a"), Hand(), Hand()
    assert group.runs(one, runs_max=1) == [[0, 2, 3]]
    assert group.runs(other) == [[1]]
    group.ledger.settle(one, 1, 2)
    assert group.has_nothing_for(other), "the key has an event in hand"


def test_a_run_and_a_window_have_a_bound() -> None:
    group, one, other = Group(*"a" * (RUN_MAX + 5)), Hand(), Hand()
    assert group.runs(one, events_max=3) == [[0, 1, 2]]
    assert group.has_nothing_for(other)
    group.ledger.settle(one, 1, 3)
    assert group.runs(other) == [list(range(3, 3 + RUN_MAX))]


def test_settling_in_any_order_twice_and_what_was_never_sent() -> None:
    group, hand = Group("a", "b", "c"), Hand()
    size = group.take(hand).size
    third = group.ledger.settle(hand, 3, 3)
    first_two = group.ledger.settle(hand, 1, 3)
    assert (third[0], first_two[0], third[1] + first_two[1]) == (1, 2, size)
    assert group.ledger.settle(hand, 1, 3) == (0, 0)
    with pytest.raises(FeedmuxError) as caught:
        group.ledger.settle(hand, 1, 4)
    assert (caught.value.reason, caught.value.field) == (ErrorReason.ACK_OUT_OF_RANGE, "settle.done")
    assert (group.paid, group.ledger.keys, hand.outstanding) == (0, {}, 0)


def test_a_large_event_goes_alone_and_only_where_there_is_room_for_it() -> None:
    group, hand = Group("a", "b", "c", padding=1000), Hand()
    limits = {"events_max": 10, "credit_bytes": 1 << 20, "runs_max": 10}
    assert isinstance(group.ledger.take(hand, payload_max=500, event_max=500, **limits), NeedsRoom)
    assert group.runs(hand, payload_max=500) == [[0]]
    assert group.runs(hand, payload_max=1_500) == [[1]]
    assert group.runs(hand, credit_bytes=1) == [[2]], "one event may overdraw the credit"


@over("gathers", [False, True])
def test_events_that_cannot_be_recorded_cost_nothing(gathers: bool) -> None:
    """A pipeline has moved the `_id` of an event within a chunk out of reach. Each member that looks meets that."""
    events = [group_event(0, "a"), without_reachable_id(group_event(1, "b")), group_event(2, "c")]
    group, (chunk,) = Group(), chunks_of(events)
    if gathers:
        group.ledger.gather()
    with pytest.raises(FeedmuxError, match="_id"):
        group.ledger.record(chunk, 0, 2)
    assert (group.paid, group.ledger.outstanding, chunk.readers) == (0, 0, None)


def test_evicted_events_are_copied_and_paid_for_until_they_are_settled() -> None:
    group, hand = Group(*range(20), padding=1000), Hand()
    (chunk,) = group.chunks
    tokens = [chunk.token(index) for index in range(20)]
    group.runs(hand, events_max=19)
    for sequence in set(range(1, 20)) - {5, 9}:
        group.ledger.settle(hand, sequence, sequence)
    before = group.paid
    assert before == 3 * EVENT_BYTES + SPAN_BYTES
    chunk.drop_bytes()
    assert chunk.bson is None
    assert 3 * 1000 < group.paid - before < 3 * 1600, "events 4, 8 and 19"
    assert group.ledger.settled_place() == tokens[3]
    group.ledger.settle(hand, 5, 5)
    assert group.ledger.settled_place() == tokens[7]
    assert group.runs(hand) == [[19]]
    group.ledger.settle(hand, 1, 20)
    assert (group.paid, group.ledger.settled_place()) == (0, chunk.end)


def test_a_ring_that_ends_leaves_its_events_to_the_group() -> None:
    group, hand = Group("a", "b", padding=1000), Hand()
    group.chunks[0].retain_whole()
    assert group.chunks[0].bson is None, "nobody else holds it"
    assert group.paid > 2 * (1000 + EVENT_BYTES)
    assert group.runs(hand) == [[0], [1]]
    group.ledger.release()
    assert group.paid == 0


def test_the_end_of_a_group_with_many_events_has_parts() -> None:
    count = 2 * ENTRIES_AT_ONCE + 10
    group, hand = Group(*(n % 1_500 for n in range(count)), padding=10, outstanding_max=count), Hand()
    group.take(hand, runs_max=100)
    group.chunks[0].retain_whole()
    left = list[int]()
    while group.ledger.release():
        left.append(group.ledger.outstanding)
    assert left == [ENTRIES_AT_ONCE + 10, 10]
    assert (group.paid, group.ledger.outstanding, group.ledger.keys) == (0, 0, {})


def test_nothing_is_read_while_the_members_have_enough() -> None:
    group, hand = Group("a", "b", "c", outstanding_max=4), Hand()
    group.ledger.wanted = 3
    assert group.ledger.room == 0, "three runs are ready"
    group.runs(hand, runs_max=1)
    assert group.ledger.room == 1
    group.ledger.may_grow = lambda: False
    assert group.ledger.room == 0


def ahead_of(group: Group, most: int = HOLES_MAX) -> Ahead:
    ahead = group.ledger.ahead(most)
    assert ahead is not None
    return ahead


@over("count", [10, 100, 1_000])
def test_each_id_is_hashed_once_and_few_bytes_at_a_time(count: int) -> None:
    group, hand, hashed = Group(*range(count)), Hand(), list[int]()
    group.take(hand)
    group.ledger.settle(hand, count, count)
    size = len(event_token(BEGIN + 1, key=0).raw)

    def counted(raw: bytes) -> bytes:
        hashed.append(len(raw))
        return mark_of(raw)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_ledger, "_MARKED_BYTES", 5 * size)
        patched.setattr(key_ledger, "mark_of", counted)
        for calls in range(1, count // 5 + 1):
            assert len(ahead_of(group, count).holes) == len(hashed) <= 5 * calls + 1
    assert len(hashed) <= count - 1
    assert ahead_of(group, count).high == group.chunks[0].end


@over("count", [10, 100, 1_000])
def test_few_ids_that_a_pipeline_has_moved_are_searched_for_at_a_time(count: int) -> None:
    events = [group_event(number, number) for number in range(count)]
    moved = [ordered(dict(reversed(bson.decode(each).items()))) for each in events]
    group, hand, searched = Group(reads=0), Hand(), 0
    group.read(*chunks_of(moved))
    group.take(hand)
    group.ledger.settle(hand, count, count)

    def counted(data: bytes, at: int) -> bytes:
        nonlocal searched
        searched += 1
        return event_id(data, at)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_ledger, "event_id", counted)
        found = [len(ahead_of(group, count).holes) for _ in range(3)]
    assert found == [min(count - 1, calls * 43) for calls in (1, 2, 3)]
    assert searched <= 3 * 43 + 3, "with the position before the next one"


def test_beyond_the_bound_of_holes_what_is_settled_comes_again() -> None:
    keys, hand = ("a", "b", "c", "d"), Hand()
    group = Group(*keys)
    group.runs(hand)
    group.ledger.settle(hand, 2, 2)
    group.ledger.settle(hand, 4, 4)
    ahead = ahead_of(group, 1)
    assert ahead.high == group.chunks[0].token(1)
    assert Group(*keys, ahead=ahead).runs(Hand()) == [[0], [2], [3]]
    assert ahead_of(group, 2).high == group.chunks[0].end


def test_nothing_is_ahead_of_the_position_when_all_is_settled() -> None:
    group, hand = Group("a", "b"), Hand()
    group.runs(hand)
    group.ledger.settle(hand, 1, 2)
    group.ledger.settled_place()
    assert group.ledger.ahead(HOLES_MAX) is None


def test_what_waits_for_an_event_without_a_key_is_not_ahead() -> None:
    group, hand = Group("a", "b", DROPPED, "c"), Hand()
    group.runs(hand)
    group.ledger.settle(hand, 2, 2)
    assert ahead_of(group).high == group.chunks[0].token(1)
    group.ledger.settle(hand, 1, 1)
    group.ledger.settled_place()
    assert group.runs(hand) == [[2]]
    ahead = ahead_of(group)
    assert (ahead.high, len(ahead.holes)) == (group.chunks[0].token(2), 1)
    assert Group("a", "b", DROPPED, "c", ahead=ahead).ledger.outstanding > 1


def test_an_idle_feed_passes_the_higher_position_too() -> None:
    group, hand = Group("a", "b"), Hand()
    group.runs(hand)
    group.ledger.settle(hand, 2, 2)
    ahead = ahead_of(group)
    after = Group(ahead=ahead)
    assert not after.ledger.progress(START)
    later = ResumeToken.high_water_mark(BEGIN + 100)
    assert after.ledger.progress(later)
    assert (after.ledger.restores, after.ledger.settled_place()) == (False, later)


def test_what_an_earlier_host_has_read_is_read_although_nobody_can_take_it() -> None:
    keys = ("a", "b", "a", "c")
    group, hand = Group(*keys), Hand()
    group.runs(hand)
    group.ledger.settle(hand, hand.sequence, hand.sequence)
    after = Group(*keys, ahead=ahead_of(group), per_chunk=1, reads=1, outstanding_max=3)
    after.ledger.wanted = 0
    assert after.ledger.room == 2
    after.may_grow = False
    assert after.ledger.room == 0
    after.may_grow = True
    after.read(*after.chunks[1:])
    assert (after.ledger.restores, after.ledger.room) == (False, 0)


def test_a_host_that_has_not_read_everything_yet_stores_what_it_knows() -> None:
    keys = ("a", "b", "c", "a", "d", "c", "b")
    group, hand = Group(*keys), Hand()
    group.runs(hand)
    group.ledger.settle(hand, 7, 7)
    assert list(ahead_of(group).holes.values()) == [1, 1, 1]
    after = Group(*keys, ahead=ahead_of(group), per_chunk=1, reads=4)
    hand = Hand()
    assert after.runs(hand) == [[0, 3], [1], [2]]
    after.ledger.settle(hand, 1, 1)
    after.ledger.settle(hand, 3, 3)
    after.fail(hand, 4)
    assert after.ledger.settled_place() == START, "the event after 0 may be unsettled"
    last = Group(*keys, ahead=ahead_of(after))
    taken = last.take(Hand())
    assert list(map(number_of, taken.parts)) == [1, 6, 2, 5, 3], "what follows 1 in its key was not read, and 2 failed"
    assert taken.attempts == [1, 1, 2, 1, 1]


def shown(keys: Sequence[object], numbers: Iterable[int]) -> list[Chunk]:
    """What MongoDB shows if a filter passes only these events."""
    return chunks_of([group_event(number, keys[number]) for number in numbers], 5)


def test_what_follows_a_hole_that_is_not_shown_again_is_not_settled() -> None:
    """As where the pipeline filters by what `updateLookup` finds. Of positions of earlier versions, that is lost."""
    keys = ("a", "b", "a", "b", "a", "c")
    group, hand = Group(*keys), Hand()
    assert group.runs(hand, runs_max=2) == [[0, 2, 4], [1, 3]]
    group.ledger.settle(hand, 1, 1)
    group.ledger.settle(hand, 4, 5)
    ahead = ahead_of(group)
    ahead = unpacked(ahead.high, ahead.packed(), HOLE_BYTES)
    for without, left in ((2, [[4], [5]]), (5, [[2, 4]]), (4, [[2], [5]])):
        after = Group(reads=0, ahead=ahead)
        after.read(*shown(keys, {*range(6)} - {without}))
        assert after.runs(Hand()) == left
    again = Group(reads=0, ahead=ahead)
    again.read(*shown(keys, (0, 1, 3, 4)))
    hand = Hand()
    assert again.runs(hand) == [[4]]
    again.ledger.settle(hand, 1, 1)
    assert ahead_of(again) == ahead, "event 5 was not read, nor was event 2 found"


@over("shows_all", [True, False])
@over("seed", range(100))
def test_hosts_that_are_lost_while_they_read_what_earlier_ones_have_settled(seed: int, shows_all: bool) -> None:
    """None of them stores as settled what is not, also if MongoDB does not show each event to each of them."""
    rng = random.Random(seed)
    keys = [rng.randrange(8) if rng.random() < 0.97 else DROPPED for _ in range(60)]
    settled, hidden, ahead = set[int](), set[int](), None
    for host in range(8):
        hidden |= {n for n in range(60) if not shows_all and rng.random() < 0.1}
        group = Group(reads=0, ahead=ahead)
        group.read(*shown(keys, (n for n in range(60) if n not in hidden))[: 60 if not host else rng.randint(0, 12)])
        hand = Hand()
        for _ in range(rng.randint(0, 6)):
            taken = group.ledger.take(
                hand, events_max=15, credit_bytes=1 << 20, payload_max=1 << 20, event_max=1 << 20, runs_max=10
            )
            numbers = [] if taken is None else [number_of(each) for each in cast(Runs, taken).parts]
            for sequence, number in enumerate(numbers, hand.sequence - len(numbers) + 1):
                if rng.random() < 0.7 and group.ledger.settle(hand, sequence, sequence)[0]:
                    settled.add(number)
                elif rng.random() < 0.5:
                    group.fail(hand, sequence, retry_after_s=0.0)
                    group.ledger.due(0.0)
        group.ledger.settled_place()
        if group.ledger.place != START:
            break
        ahead = group.ledger.ahead(HOLES_MAX)
        again = Group(reads=0, ahead=ahead)
        visible = {n for n in range(60) if n not in hidden and (shows_all or rng.random() < 0.8)}
        again.read(*shown(keys, sorted(visible)))
        left = {number_of(span.rendition.cut(at, at + 1)) for span, at, _ in again.ledger.events.values()}
        assert visible - settled <= left


def test_with_tokens_of_another_version_everything_comes_again() -> None:
    group, hand = Group("a", "b"), Hand()
    group.runs(hand)
    group.ledger.settle(hand, 2, 2)
    other = event_token(BEGIN + 2, key=1, fragment=0)
    after = Group("a", "b", ahead=Ahead(other, ahead_of(group).holes))
    assert (after.runs(Hand()), after.ledger.restores) == ([[0], [1]], False)


def test_evicted_events_are_recognized() -> None:
    group, hand = Group("a", "b", "c"), Hand()
    group.runs(hand)
    group.ledger.settle(hand, 2, 2)
    before = ahead_of(group)
    group.chunks[0].drop_bytes()
    assert ahead_of(group) == before


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


@over("pin", [True, False])
def test_an_event_without_a_key_waits_for_letters_and_they_for_it(pin: bool) -> None:
    group, hand = Group("a", DROPPED, DROPPED, "a", per_chunk=1, reads=1), Hand()
    first = aside(group, pin=pin)
    assert first.key is not None
    group.read(*group.chunks[1:])
    assert group.runs(hand) == [[1]]
    assert group.ledger.may_replay
    group.ledger.replay(first.key, stored(first), 0.0, last=pin)
    assert group.has_nothing_for(hand), "an event without a key is alone"
    group.ledger.settle(hand, 1, 1)
    assert group.runs(hand) == [[0]], "before the next one without a key"
    group.ledger.settle(hand, 2, 2)
    assert group.runs(hand) == [[2]]
    group.ledger.settle(hand, 3, 3)
    group.ledger.deleted([4])
    assert group.runs(hand) == [[3]]


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


@over("seed", range(30))
def test_the_letters_that_rest_are_counted(seed: int) -> None:
    """As a visit of all loaded letters finds them."""
    rng, group, hand, number, now_s = random.Random(seed), Group(attempts_max=3), Hand(), 0, 0.0
    ledger, names = group.ledger, [b"a", b"b", b"c", b"d"]
    ledger.pin(b"a")
    for _ in range(200):
        match rng.randrange(8):
            case 0 | 1:
                first, number = number, number + rng.randint(1, 3)
                letters = [Stored(b"%d" % each, group_event(each, 0), 1) for each in range(first, number)]
                name = rng.choice(names)
                if name not in ledger.pinned or not ledger.replays(name):
                    ledger.replay(name, letters, now_s, last=rng.random() < 0.5)
            case 2 | 3:
                if (ledger.ready or ledger.alone) and not hand.outstanding:
                    group.take(hand, events_max=rng.randint(1, 5))
            case 4 if hand.outstanding:
                failure = Failure(rng.randint(1, hand.sequence), rng.choice([0.0, 5.0]), reject=rng.random() < 0.3)
                ledger.fail(hand, failure, now_s)
            case 5 if hand.sequence:
                first = rng.randint(1, hand.sequence)
                ledger.settle(hand, first, min(hand.sequence, first + 2))
                if rng.random() < 0.5:
                    ledger.deleted(list(ledger.replayed))
            case 6:
                now_s += 2.0
                ledger.due(now_s)
            case 7:
                if rng.random() < 0.2:
                    ledger.give_back(hand, lost=True)
                for each in list(ledger.to_set_aside())[: rng.randint(0, 2)]:
                    ledger.set_aside(each.number, pin=rng.random() < 0.3)
        resting = Counter[bytes | None]()
        for loaded in ledger._letters:
            key = ledger.events[loaded][2]
            tries = ledger.retries.of(key.waiting[0]) if key.hand is None and key.waiting else ledger.retries.of(-1)
            resting[key.name] += tries.due_s is not None or tries.exhausted
        assert ledger.resting == +resting
        assert ledger.resting_letters == resting.total()
        assert ledger.loaded_letters == len(ledger.loaded)
