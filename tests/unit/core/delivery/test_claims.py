"""What a new host does with what the members of a lost one have."""

from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from feedmux_server.core.delivery import claims, key_ledger, retry
from feedmux_server.core.delivery.claims import CLAIM_BYTES, Claims, claim_of
from feedmux_server.core.delivery.key_ledger import EVENT_BYTES, SPAN_BYTES, KeyLedger, Stored
from feedmux_server.core.delivery.key_runs import Hand
from feedmux_server.core.events.chunk import event_id
from feedmux_server.core.positions.ahead import Ahead
from tests.executed import executed
from tests.tables import over
from tests.unit.core.delivery.group_events import DROPPED, group_event, number_of
from tests.unit.core.delivery.ledger_support import Group


class Gathering(Group):
    """A group whose ledger gathers, and has read nothing."""

    def __init__(self, *keys: object, **options: Any) -> None:
        super().__init__(*keys, reads=0, per_chunk=10_000, **options)
        self.ledger.gather()
        (self.chunk,) = self.chunks

    def mark(self, number: int) -> int:
        rendition = self.chunk.bson
        assert rendition is not None
        return claim_of(event_id(rendition.data, rendition.offsets[number]))

    def claim(self, hand: Hand, held: Iterable[int] = (), settled: Iterable[int] = (), epoch: int = 0) -> None:
        self.ledger.claim(hand, map(self.mark, held), map(self.mark, settled), epoch)

    def deliver(self) -> None:
        self.ledger.gathered()
        self.read(self.chunk)
        self.ledger.end_gather()


def test_what_is_held_goes_to_its_holder_before_the_rest_of_its_key() -> None:
    group, one, other = Gathering("a", "b", "a", "a", "c"), Hand(), Hand()
    group.claim(one, held=[2])
    assert group.ledger.expects_claims
    group.ledger.gathered()
    assert (group.ledger.gathers, group.ledger.expects_claims) == (True, False), "it reads until it has met that"
    assert group.ledger.room == 1000
    group.read(group.chunk)
    assert group.has_nothing_for(other), "not before it is known who holds what"
    group.ledger.end_gather()
    assert group.runs(other) == [[1], [4]]
    assert group.runs(one) == [[2, 0, 3]]
    group.ledger.settle(one, 1, 3)
    group.ledger.settle(other, 1, 2)
    assert group.ledger.settled_place() == group.chunk.end


def test_what_a_member_has_settled_does_not_come_again() -> None:
    group, one = Gathering("a", "b", "a", "c"), Hand()
    group.claim(one, settled=[0, 3])
    group.ledger.gathered()
    assert not group.ledger.gathers, "nothing is held"
    changes = group.ledger.changes
    group.read(group.chunk)
    assert group.ledger.changes == changes + 2
    assert group.runs(Hand()) == [[1], [2]]
    assert group.ledger.settled_place() == group.chunk.token(0)


def test_an_event_without_a_key_waits_for_what_is_held_after_it() -> None:
    group, one, other = Gathering("a", DROPPED, "b"), Hand(), Hand()
    group.claim(one, held=[2])
    group.deliver()
    assert (group.runs(other), group.runs(one)) == ([[0]], [[2]])
    group.ledger.settle(other, 1, 1)
    assert group.has_nothing_for(other)
    group.ledger.settle(one, 1, 1)
    assert group.runs(other) == [[1]]


def test_nothing_comes_while_a_member_holds_an_event_without_a_key() -> None:
    group, one, other = Gathering("a", DROPPED, "b"), Hand(), Hand()
    group.claim(one, held=[1])
    group.deliver()
    assert group.has_nothing_for(other)
    assert group.runs(one) == [[1]]
    group.ledger.settle(one, 1, 1)
    assert group.runs(other) == [[0], [2]]


ONE, OTHER = Hand("one"), Hand("other")


@over(
    "what",
    [
        ("the first holder keeps it", [(ONE, [0], []), (OTHER, [0], [])], [[0, 1]], []),
        ("whoever works counts more than whoever has settled it", [(OTHER, [], [0]), (ONE, [0], [])], [[0, 1]], []),
        ("one holder of a key", [(ONE, [0], []), (OTHER, [1], [])], [[0, 1]], []),
        ("twice by one member", [(ONE, [0, 0, 1], [0, 0]), (ONE, [0], [])], [[0, 1]], []),
    ],
)
def test_claims_that_contradict(
    what: tuple[str, list[tuple[Hand, list[int], list[int]]], list[list[int]], list[list[int]]],
) -> None:
    _, claims, of_one, of_other = what
    group = Gathering("a", "a")
    hands = {ONE: Hand(), OTHER: Hand()}
    for hand, held, settled in claims:
        group.claim(hands[hand], held, settled)
    group.deliver()
    assert group.runs(hands[ONE]) == of_one
    assert group.has_nothing_for(hands[OTHER]) is (of_other == [])
    group.ledger.settle(hands[ONE], 1, 2)
    group.ledger.forget_claims()
    assert (group.paid, group.ledger.keys) == (0, {})


@pytest.mark.parametrize("later_tells_first", [True, False])
def test_who_was_at_the_later_host_has_what_two_hold(later_tells_first: bool) -> None:
    """The other had no connection when that host delivered its events again, and may be at work still."""
    group, earlier, later = Gathering("a", "a"), Hand(), Hand()
    for hand, epoch in ((later, 3), (earlier, 2))[:: 1 if later_tells_first else -1]:
        group.claim(hand, held=[0], epoch=epoch)
    group.deliver()
    assert group.has_nothing_for(earlier)
    assert group.runs(later) == [[0, 1]]


(PINNED,) = Group("a").ledger.keys
assert PINNED is not None
HELD, REST = [1, 2], [0, 3]


def pinned(*keys: object, **options: Any) -> Gathering:
    """A group whose key "a" is in quarantine."""
    group = Gathering(*keys, **options)
    assert PINNED is not None
    group.ledger.pin(PINNED)
    return group


def following(group: Group) -> list[int]:
    return [number_of(each.event) for each in group.ledger.to_follow(events_max=10, bytes_max=1 << 20)]


def holding() -> tuple[Gathering, Hand]:
    """A member that holds the second and third event of the pinned key."""
    group, one = pinned("a", "a", "a", "a"), Hand("one")
    group.claim(one, held=HELD)
    group.deliver()
    return group, one


def test_a_key_in_quarantine_of_which_nobody_holds_anything_is_nobodys() -> None:
    group, one = pinned("a", "b", "a"), Hand()
    group.claim(one, held=[1])
    group.deliver()
    assert group.runs(one) == [[1]]
    assert (group.has_nothing_for(one), following(group)) == (True, [0, 2])


def test_of_a_key_in_quarantine_a_member_keeps_what_it_holds_and_the_rest_is_set_aside() -> None:
    group, one = holding()
    assert (following(group), group.has_nothing_for(Hand())) == ([], True)
    assert group.runs(one) == [HELD], "and nothing that it has not begun"
    group.ledger.disconnect(one)
    assert group.runs(one, events_max=1) == [HELD[:1]]
    group.ledger.settle(one, 1, 1)
    assert following(group) == [], "it has more"
    assert group.runs(one) == [HELD[1:]]
    group.ledger.settle(one, 2, 2)
    assert (group.has_nothing_for(one), following(group)) == (True, REST)
    for each in list(group.ledger.to_follow(events_max=10, bytes_max=1 << 20)):
        group.ledger.set_aside(each.number)
    group.ledger.forget_claims()
    assert (group.paid, group.ledger.keys) == (key_ledger.PIN_BYTES, {})


@pytest.mark.parametrize("end", ["failed", "lost", "not sent"])
def test_of_a_key_in_quarantine_what_its_holder_does_not_finish_is_set_aside_first(end: str) -> None:
    group, one = holding()
    if end != "not sent":
        group.runs(one)
    if end == "failed":
        group.fail(one, 1, reason="sick")
    else:
        group.ledger.give_back(one, lost=True)
    found = group.ledger.to_follow(events_max=10, bytes_max=1 << 20)
    assert [number_of(each.event) for each in found] == HELD + REST
    assert [each.deliveries for each in found] == [1, 0, 0, 0]
    assert group.has_nothing_for(Hand())


def test_what_a_member_has_settled_of_a_key_in_quarantine_is_settled() -> None:
    group, one = pinned("a", "a", "a"), Hand()
    group.claim(one, held=[1], settled=[0])
    group.deliver()
    assert group.runs(one) == [[1]]
    group.ledger.settle(one, 1, 1)
    assert following(group) == [2]


def test_an_event_that_is_held_and_read_late_goes_to_its_holder_before_the_rest() -> None:
    group, one = pinned("a", "a", "a", "a"), Hand()
    group.claim(one, held=HELD)
    group.ledger.gathered()
    group.ledger.end_gather()
    group.ledger.record(group.chunk, 1, 2)
    group.ledger.record(group.chunk, 3, 4)
    group.ledger.record(group.chunk, 2, 3)
    assert group.runs(one) == [HELD]
    group.ledger.settle(one, 1, 2)
    assert following(group) == [3]


@pytest.mark.parametrize("is_sent", [True, False])
def test_letters_come_after_what_is_held_and_before_what_follows(is_sent: bool) -> None:
    """The operator has them delivered again while the member is at work."""
    group, one = holding()
    assert PINNED is not None
    if is_sent:
        assert group.runs(one) == [HELD]
    letters = [Stored(b"x", group_event(10, "a"), 1), Stored(b"y", group_event(11, "a"), 0)]
    assert group.ledger.replay(PINNED, letters, 0.0, last=True) is None
    group.ledger.disconnect(one)
    assert group.runs(one) == [HELD]
    group.ledger.settle(one, 1, 2)
    assert group.runs(one) == [[10, 11]]
    group.ledger.settle(one, 3, 4)
    assert group.has_nothing_for(one)
    group.ledger.deleted(list(group.ledger.replayed))
    assert group.runs(one) == [REST]


@over("quarantine", [False, True])
def test_letters_that_nobody_holds_are_left_out_until_it_is_known_who_holds_events_of_their_key(
    quarantine: bool,
) -> None:
    group, one = (pinned if quarantine else Gathering)("a", "a"), Hand()
    assert PINNED is not None
    group.claim(one, held=[0])
    group.ledger.gathered()
    letters = [Stored(b"x", group_event(10, "a"), 1)]
    assert group.ledger.replay(PINNED, letters, 0.0, last=True) is None
    group.read(group.chunk)
    group.ledger.end_gather()
    assert (group.ledger.loaded_letters, group.has_nothing_for(Hand())) == (0, True)
    group.ledger.replay(PINNED, letters, 0.0, last=True)
    assert group.has_nothing_for(Hand())
    assert group.runs(one) == ([[0]] if quarantine else [[0, 1]])
    group.ledger.settle(one, 1, one.sequence)
    assert group.runs(one) == [[10]]
    group.ledger.settle(one, one.sequence, one.sequence)
    group.ledger.deleted(list(group.ledger.replayed))
    if quarantine:
        assert group.runs(one) == [[1]]


def test_letters_that_were_loaded_are_not_set_aside_with_what_their_holder_has_failed() -> None:
    group, one = holding()
    assert PINNED is not None
    group.runs(one)
    group.ledger.replay(PINNED, [Stored(b"x", group_event(10, "a"), 1)], 0.0)
    group.fail(one, 1)
    found = group.ledger.to_follow(events_max=10, bytes_max=1 << 20)
    assert [number_of(each.event) for each in found] == HELD
    for each in found:
        group.ledger.set_aside(each.number)
    assert group.runs(one) == [[10]]


@over("when", ["before", "while", "after"])
def test_what_a_holder_that_is_lost_held_goes_to_others(when: str) -> None:
    group, one, other = Gathering("a", "a", "b"), Hand(), Hand()
    group.claim(one, held=[1], settled=[2])
    assert group.ledger.holds(one)
    steps: dict[str, Callable[[], None]] = {
        "before": group.ledger.gathered,
        "while": lambda: group.read(group.chunk),
        "after": group.ledger.end_gather,
    }
    for step, action in steps.items():
        if step == when:
            group.ledger.give_back(one, lost=True)
        action()
    if when == "after":
        assert not group.ledger.holds(one)
    assert group.runs(other) == [[0, 1]], "in order again"


def test_a_later_event_that_failed_does_not_stop_the_repeat_of_the_held_one() -> None:
    group, one = Gathering("a", "a", "a"), Hand()
    group.claim(one, held=[2])
    group.deliver()
    assert group.runs(one) == [[2, 0, 1]]
    assert group.fail(one, 2) == 2
    group.ledger.disconnect(one)
    assert group.runs(one) == [[2]], "the member has it in hand"
    group.ledger.settle(one, 1, 1)
    assert group.has_nothing_for(one)
    assert group.ledger.due(1000.0)
    assert group.runs(one) == [[0, 1]]


def failed_often(*keys: object) -> Ahead:
    """Of a group that has failed three times with the first event of the second key."""
    group, hand = Group(*keys), Hand()
    group.runs(hand)
    for _ in range(3):
        group.fail(hand, hand.sequence, retry_after_s=0.0)
        group.ledger.due(0.0)
        group.runs(hand)
    ahead = group.ledger.ahead(10)
    assert ahead is not None
    return ahead


def test_what_a_member_holds_with_others_is_not_sent_as_if_it_were_alone() -> None:
    keys = ("slow", "poison")
    group, holder, other = Gathering(*keys, ahead=failed_often(*keys), attempts_max=2), Hand(), Hand()
    group.claim(holder, held=[0, 1])
    group.deliver()
    assert group.runs(holder) == [[0], [1]]
    group.ledger.give_back(holder, lost=True)
    assert [*group.ledger.to_set_aside()] == [], "nothing has shown yet which of them ends a member"
    assert (group.runs(other), other.is_alone) == ([[1]], True)
    group.ledger.give_back(other, lost=True)
    assert [number_of(each.event) for each in group.ledger.to_set_aside()] == [1]


def test_an_event_that_must_be_alone_is_in_no_run_of_a_holder() -> None:
    keys = ("slow", "poison", "poison")
    group, holder = Gathering(*keys, ahead=failed_often("slow", "poison"), attempts_max=2), Hand()
    group.claim(holder, held=[2])
    group.deliver()
    assert group.runs(holder) == [[2], [0]]
    group.ledger.settle(holder, 1, 1)
    assert group.has_nothing_for(holder)
    group.ledger.settle(holder, 2, 2)
    assert (group.runs(holder), holder.is_alone) == ([[1]], True)


def test_claims_count_as_memory() -> None:
    group, one = Gathering("a", "b"), Hand()
    group.claim(one, held=[0], settled=[1])
    assert group.paid == 2 * CLAIM_BYTES
    group.may_grow = False
    group.claim(Hand(), held=[1])
    assert group.paid == 2 * CLAIM_BYTES
    group.may_grow = True
    group.deliver()
    assert group.paid == EVENT_BYTES + SPAN_BYTES
    group.claim(one, held=[0], settled=[1])
    group.ledger.forget_claims()
    assert group.paid == EVENT_BYTES + SPAN_BYTES
    group.claim(one, held=[0])
    assert group.paid == EVENT_BYTES + SPAN_BYTES, "a claim of a member that comes later is ignored"
    assert not group.ledger.release()
    assert group.paid == 0


@over("restored", [True, False])
def test_claims_that_fill_the_memory_do_not_stop_the_group(restored: bool) -> None:
    keys = ("slow", "poison", "c")
    group, one, other = Gathering(*keys, ahead=failed_often(*keys) if restored else None), Hand(), Hand()
    group.claim(one, held=[0], settled=[1])
    group.may_grow = False
    group.ledger.gathered()
    assert group.ledger.room > 0
    group.read(group.chunk)
    assert group.ledger.room == 0, "until that is settled"
    group.ledger.end_gather()
    assert (group.runs(one, runs_max=0), group.runs(other)) == ([[0]], [[2]])


def test_the_next_host_gathers_if_members_have_events_in_hand() -> None:
    group, one = Group("a"), Hand()
    found = [group.ledger.recovers]
    group.take(one)
    found.append(group.ledger.recovers)
    group.ledger.settle(one, 1, 1)
    assert [*found, group.ledger.recovers] == [False, True, False]


def test_the_next_host_gathers_if_this_one_still_compares_claims() -> None:
    ledger = Gathering("a").ledger
    found = ledger.recovers
    ledger.forget_claims()
    assert (found, ledger.recovers) == (True, False)


class Compared(Hand):
    """A hand that counts how often it is compared with another one."""

    __slots__ = ()
    count = 0
    __hash__ = Hand.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return self is other


def cost(action: Callable[[], object], *modules: ModuleType) -> int:
    """How many lines of `claims`, or of these modules, run, and how many hands are compared."""
    Compared.count = 0
    with executed(*modules or (claims,)) as lines:
        action()
    return lines.count + Compared.count


def test_who_leaves_looks_through_its_own_claims_however_many_others_hold() -> None:
    costs = set[tuple[int, ...]]()
    for count in (10, 100, 1_000):
        group, hands = Gathering(*range(count)), [Compared() for _ in range(count)]
        for number, hand in enumerate(hands[:-1]):
            group.claim(hand, held=[number])
        group.ledger.gathered()
        group.read(group.chunk)
        for hand in hands[:-1]:
            assert group.ledger.holds(hand)
        give_back = partial(group.ledger.give_back, hands[-2], lost=True)
        costs.add(tuple(map(cost, (partial(group.ledger.holds, hands[-2]), give_back))))
        assert not group.ledger.holds(hands[-2])
    assert len(costs) == 1
    assert min(costs.pop()) > 0


@over("count", [10, 100, 1_000])
def test_no_turn_of_the_event_loop_visits_all_that_a_lost_host_has_delivered(count: int) -> None:
    """Here more than 20. The first event has no key, so those that nobody holds wait for it."""
    hands, more, visits = [Hand() for _ in range(3)], list[None](), list[int]()

    def counted(visited: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            visits[-1] += 1
            return visited(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_ledger, "ENTRIES_AT_ONCE", 20)
        patched.setattr(Claims, "holder_of", counted(Claims.holder_of))
        patched.setattr(KeyLedger, "_offer", counted(KeyLedger._offer))
        group = Gathering(DROPPED, *range(1, count))
        group.ledger.on_more = lambda: more.append(None)

        def in_turns(step: Callable[[], object]) -> None:
            visits.append(0)
            step()
            while more:
                more.pop()
                visits.append(0)
                group.ledger.go_on()

        of_one, of_other, of_nobody = ([*range(first, count, 3)] for first in (1, 2, 3))
        group.claim(hands[0], held=of_one)
        group.claim(hands[1], held=of_other)
        group.ledger.gathered()
        group.read(group.chunk)
        assert group.has_nothing_for(hands[2])
        in_turns(group.ledger.end_gather)
        for hand, held in zip(hands, (of_one, of_other, [0]), strict=False):
            assert [number for run in group.runs(hand) for number in run] == held
            in_turns(partial(group.ledger.settle, hand, 1, hand.sequence))
        assert [number for run in group.runs(hands[2]) for number in run] == of_nobody
    assert 3 <= max(visits) <= 41


@over("joins", [10, 100, 1_000])
def test_who_joins_again_and_again_has_the_claims_of_one_join(joins: int) -> None:
    """Each time with other events: nobody has told these, and nobody has read them."""
    paid = list[int]()
    told, one, other = Claims(paid.append), Hand(), Hand()
    told.add(other, [1], [2])
    for join in range(1, joins + 1):
        told.add(one, range(join * 1_000, join * 1_000 + 20), range(-join * 1_000, 20 - join * 1_000))
    assert (len(told), told.awaited, sum(paid)) == (42, 21, 42 * CLAIM_BYTES)
    assert cost(partial(told.add, one, [3], [4])) <= 20 + 2 * 20
    assert (len(told), told.of(one)) == (4, True)
    assert cost(partial(told.withdraw, one)) <= 20
    assert (told.of(one), told.of(other), len(told)) == (False, True, 3), "what it has settled stays settled"


@over("count", [10, 100, 1_000])
def test_no_turn_of_the_event_loop_releases_more_than_a_part(count: int) -> None:
    """Here 20 of each kind: events, also failed ones and some that wait for one without a key, pinned keys, claims."""
    costs = list[int]()

    def turns(ledger: KeyLedger) -> None:
        left = [True]
        while left.pop():
            costs.append(cost(lambda: left.append(ledger.release()), claims, key_ledger, retry))

    with pytest.MonkeyPatch.context() as patched:
        for module in (claims, key_ledger, retry):
            patched.setattr(module, "ENTRIES_AT_ONCE", 20)
        failed, one = Group(*range(count)), Hand()
        failed.runs(one)
        for sequence in range(1, count + 1):
            failed.fail(one, sequence)
        for number in range(count):
            failed.ledger.pin(b"%d" % number)
        turns(failed.ledger)
        waiting, hands = Gathering(DROPPED, *range(1, 2 * count)), [Hand() for _ in range(count)]
        for number, hand in enumerate(hands):
            waiting.claim(hand, held=[number], settled=[count + number])
        waiting.ledger.gathered()
        waiting.read(waiting.chunk)
        turns(waiting.ledger)
        more = list[None]()
        forgetful = Gathering(*range(2 * count))
        forgetful.ledger.on_more = lambda: more.append(None)
        for number, hand in enumerate(hands):
            forgetful.claim(hand, held=[2 * number], settled=[2 * number + 1])
        forgetful.ledger.gathered()
        costs.append(cost(forgetful.ledger.forget_claims, claims))
        assert bool(more) == (count > 20)
        while more:
            more.clear()
            costs.append(cost(forgetful.ledger.go_on, claims))
    assert (failed.paid, waiting.paid, forgetful.paid) == (0, 0, 0)
    assert max(costs) < 600, "471 with 100 of each, and with 1,000"
