"""Pinned keys and letters in the ledger: no event of a key is processed before those that came earlier."""

import random
from collections import defaultdict

import pytest

from feedmux_server.core.delivery.key_ledger import PIN_BYTES, KeyLedger, SetAside, Stored
from feedmux_server.core.delivery.key_runs import Hand, Runs
from feedmux_server.core.delivery.retry import Failure, RetryPolicy
from feedmux_server.core.positions.ahead import Ahead
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.unit.core.delivery.group_events import DROPPED, START, chunks_of, group_event, number_of
from tests.unit.core.delivery.ledger_support import Group

LIMITS = {"credit_bytes": 1 << 20, "payload_max": 1 << 20, "event_max": 1 << 20, "runs_max": 100}


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


class World:
    """A group that quarantines keys, with its collection, hosts that crash, and events that fail until `healed`."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.keys = [rng.randrange(rng.choice((2, 8))) for _ in range(rng.randint(20, 120))]
        self.events = [group_event(n, key) for n, key in enumerate(self.keys)]
        self.letters: dict[bytes, dict[int, int]] = defaultdict(dict)
        """By key: the events and their deliveries."""
        self.pins: dict[bytes, bool] = {}
        """Whether a replay was asked for."""
        self.done: set[int] = set()
        self.healed = False
        self.sick = {n for n in range(len(self.keys)) if rng.random() < 0.1}
        self.place: ResumeToken = START
        self.ahead: Ahead | None = None
        self.paid = 0
        self.open()

    def open(self) -> None:
        self.paid = 0
        self.ledger = KeyLedger(
            self.place, 1000, self._pays, policy=RetryPolicy(0.1, 0.1, 2), ahead=self.ahead, pinned=self.pins
        )
        self.ledger.wanted = 1 << 30
        self.unread = [(chunk, chunk.first_after(self.place)) for chunk in chunks_of(self.events, 5)]
        self.hands = [Hand(), Hand()]
        self.held: dict[tuple[int, int], int] = {}
        """What the members have: by member and sequence."""
        self.now_s = 0.0

    def _pays(self, size: int) -> None:
        self.paid += size

    def step(self) -> None:
        steps = [self.read, self.take, self.work, self.work, self.write, self.follow, self.load, self.delete, self.due]
        if self.rng.random() < 0.02 and not self.healed:
            self.open()
        elif self.rng.random() < 0.1:
            self.commit()
        self.rng.choice(steps)()

    def read(self) -> None:
        if self.unread:
            chunk, first = self.unread.pop(0)
            if first < chunk.count:
                self.ledger.record(chunk, first, chunk.count)

    def take(self) -> None:
        which = self.rng.randrange(2)
        hand = self.hands[which]
        taken = self.ledger.take(hand, events_max=self.rng.randint(1, 20), **LIMITS)
        if not isinstance(taken, Runs):
            return
        for index, part in enumerate(taken.parts):
            n = number_of(part)
            for other, held in self.held.items():
                assert other[0] == which or self.keys[held] != self.keys[n], "a key is at two members"
            self.held[which, taken.first_sequence + index] = n

    def work(self) -> None:
        if not self.held:
            return
        which = self.rng.choice(list(self.held))[0]
        sequence, n = min((sequence, n) for (hand, sequence), n in self.held.items() if hand == which)
        if n in self.sick and not self.healed:
            self.ledger.fail(self.hands[which], Failure(sequence, reject=self.rng.random() < 0.5), self.now_s)
            for each in [each for each in self.held if each[0] == which]:
                if self.hands[which].at(each[1]) is None:
                    del self.held[each]
            return
        earlier = {each for each in range(n) if self.keys[each] == self.keys[n]}
        assert n in self.done or earlier <= self.done, f"{n} before {earlier - self.done}"
        self.done.add(n)
        self.ledger.settle(self.hands[which], sequence, sequence)
        del self.held[which, sequence]

    def write(self) -> None:
        for each in list(self.ledger.to_set_aside())[:1]:
            assert each.key is not None
            self.pins[each.key] = False
            if each.letter and each.key in self.letters:
                self.letters[each.key][number_of(each.event)] = each.deliveries
            elif not each.letter:
                self.letters[each.key].setdefault(number_of(each.event), each.deliveries)
            if self.rng.random() < 0.9:  # else the host is lost now, or tries again
                self.ledger.set_aside(each.number, pin=True)

    def follow(self) -> None:
        batch = self.ledger.to_follow(events_max=self.rng.randint(1, 5), bytes_max=1 << 20)
        for each in batch:
            assert each.key is not None
            self.letters[each.key].setdefault(number_of(each.event), each.deliveries)
        if self.rng.random() < 0.9:
            for each in batch:
                self.ledger.set_aside(each.number)

    def load(self) -> None:
        if not self.ledger.may_replay or not (self.healed or self.rng.random() < 0.3):
            return
        for key in [*self.pins]:
            if key not in self.ledger.pinned or self.ledger.replays(key):
                continue
            found = sorted(self.letters[key])
            if not found:
                del self.pins[key]
                self.ledger.unpin(key)
                continue
            some = found[: self.rng.randint(1, 6)]
            letters = [Stored(n.to_bytes(16), self.events[n], self.letters[key][n]) for n in some]
            self.ledger.replay(key, letters, 0.0, last=len(some) == len(found))

    def delete(self) -> None:
        gone = dict(self.ledger.replayed)
        for letter, key in gone.values():
            assert key.name is not None
            del self.letters[key.name][int.from_bytes(letter)]
            if not self.letters[key.name] and key.name not in self.ledger.pinned:
                self.pins.pop(key.name, None)
        self.ledger.deleted(gone)

    def due(self) -> None:
        self.now_s += 1.0
        self.ledger.due(self.now_s)

    def commit(self) -> None:
        if not self.ledger.restores:
            self.place, self.ahead = self.ledger.settled_place(), self.ledger.ahead(100)


@pytest.mark.parametrize("seed", range(150))
def test_no_event_is_processed_before_an_earlier_one_of_its_key(seed: int) -> None:
    world = World(seed)
    for _ in range(600):
        world.step()
    world.healed = True
    for _ in range(20_000):
        world.step()
        if len(world.done) == len(world.keys) and not (world.ledger.events or world.pins or world.ledger.replayed):
            break
    assert world.done == set(range(len(world.keys)))
    assert (world.ledger.keys, world.ledger.pinned, world.paid) == ({}, set(), 0)
