"""What a new host does with what the members of a lost one have."""

from collections.abc import Callable

from feedmux_server.core.delivery.claims import CLAIM_BYTES, claim_of
from feedmux_server.core.delivery.key_ledger import EVENT_BYTES, SPAN_BYTES
from feedmux_server.core.delivery.key_runs import Hand
from feedmux_server.core.events.chunk import event_id
from tests.tables import over
from tests.unit.core.delivery.group_events import DROPPED
from tests.unit.core.delivery.ledger_support import Group

Claimed = dict[Hand, tuple[list[int], list[int]]]


class Gathering(Group):
    """A group whose ledger gathers, and has read nothing."""

    def __init__(self, *keys: object) -> None:
        super().__init__(*keys, reads=0)
        self.ledger.gather()
        (self.chunk,) = self.chunks

    def mark(self, number: int) -> int:
        rendition = self.chunk.bson
        assert rendition is not None
        return claim_of(event_id(rendition.data, rendition.offsets[number]))

    def claim(self, hand: Hand, held: list[int] | None = None, settled: list[int] | None = None) -> None:
        self.ledger.claim(hand, map(self.mark, held or []), map(self.mark, settled or []))

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


def test_a_key_in_quarantine_is_nobodys() -> None:
    group, one = Gathering("a", "a"), Hand()
    (name,) = Group("a").ledger.keys
    assert name is not None
    group.ledger.pin(name)
    group.claim(one, held=[1])
    group.deliver()
    assert group.has_nothing_for(one)
    assert len(group.ledger.to_follow(events_max=10, bytes_max=1 << 20)) == 2


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
    assert group.paid == EVENT_BYTES + SPAN_BYTES, "who comes later is told nothing"
    assert not group.ledger.release()
    assert group.paid == 0


def test_who_leaves_work_is_followed_by_a_host_that_gathers() -> None:
    group, one = Group("a"), Hand()
    found = [group.ledger.recovers]
    group.take(one)
    found.append(group.ledger.recovers)
    group.ledger.settle(one, 1, 1)
    assert [*found, group.ledger.recovers] == [False, True, False]


def test_a_host_is_followed_by_one_that_gathers_as_long_as_it_compares_claims() -> None:
    ledger = Gathering("a").ledger
    found = ledger.recovers
    ledger.forget_claims()
    assert (found, ledger.recovers) == (True, False)
