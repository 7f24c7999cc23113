"""What a member hands out, reports, and recognizes after a lost stream."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from bson.codec_options import CodecOptions

from feedmux.batches import BsonBatch
from feedmux.errors import ProtocolError
from feedmux.member_event import MemberEvent
from feedmux.outcomes import DONE, Failed
from feedmux.positions import NO_POSITION
from feedmux.requests import settle_bytes
from feedmux.settlements import CLAIMS_MAX, Settlement, Settlements, mark_of
from feedmux_server.core.delivery.claims import claim_of
from tests.sim.events import event_token
from tests.tables import over
from tests.unit.client.scripted_server import event


class Nobody:
    def settle(self, event: MemberEvent, outcome: object) -> None:
        raise AssertionError


class Stream:
    """The wire of one member, and the settlements under test."""

    def __init__(self, window: int = 100) -> None:
        self.of = Settlements(window, Nobody())
        self.sequence = 0

    def deliver(self, *runs: Sequence[int], attempts: Sequence[int] = ()) -> None:
        numbers = [number for run in runs for number in run]
        data = b"".join(event(number) for number in numbers)
        options: CodecOptions[Any] = CodecOptions()
        batch = BsonBatch(memoryview(data), len(numbers), NO_POSITION, 0, options)
        self.of.arrive(self.sequence + 1, batch, [len(run) for run in runs], attempts)
        self.sequence += len(numbers)

    @classmethod
    def handed_out(cls, *runs: Sequence[int], window: int = 100) -> tuple["Stream", list[MemberEvent]]:
        """A stream that has delivered these runs, and the events that the member has in hand."""
        stream = cls(window)
        stream.deliver(*runs)
        return stream, stream.take(window)

    def reconnect(self) -> None:
        self.of.lose()
        self.sequence = 0

    def take(self, most: int = 100) -> list[MemberEvent]:
        taken: list[MemberEvent] = []
        while len(taken) < most and (one := self.of.take()) is not None:
            taken.append(one)
        return taken

    def idle(self) -> bool:
        return self.of.idle

    def awaits_repeats(self) -> bool:
        return self.of.awaits_repeats

    def done(self, *events: MemberEvent) -> None:
        for each in events:
            self.of.settle(each, DONE)

    def outgoing(self) -> tuple[list[tuple[int, int]], list[int]]:
        messages = self.of.outgoing()
        return (
            [each for message in messages for each in message.done],
            [sequence for message in messages for sequence, _ in message.failed],
        )


def numbers(events: Iterable[MemberEvent]) -> list[int]:
    return [each.document["n"] for each in events]


def test_what_the_next_host_is_told() -> None:
    stream = Stream()
    assert (stream.of.held, stream.of.settled) == ([], [])
    stream.deliver([1, 2], [3], [4], [5])
    one, three, four, five = stream.take()
    stream.done(three)
    stream.of.settle(four, Failed())
    stream.reconnect()
    assert stream.of.held == marks(1, 5), "in hand; what waited is the server's, and what has failed comes again"
    assert stream.of.settled == marks(3)
    stream.done(five)
    assert (stream.of.held, stream.of.settled) == (marks(1), marks(3, 5))
    stream.deliver([6], [7])
    six, seven = stream.take()
    stream.done(six, seven, one)
    stream.of.committed(1)
    assert stream.of.settled == marks(3, 5, 7), "others have the void event 1, and 6 is stored"
    stream.reconnect()
    stream.of.committed(1)
    assert stream.of.settled == marks(3, 5, 7), "the next session counts from 1"
    stream.of.forget()
    assert (stream.of.held, stream.of.settled) == ([], [])


def test_the_next_host_is_told_the_newest() -> None:
    stream = Stream(window=3 * CLAIMS_MAX)
    for number in range(CLAIMS_MAX + 5):
        stream.deliver([number])
        stream.done(*stream.take())
    assert stream.of.settled == marks(*range(5, CLAIMS_MAX + 5))
    stream.deliver(*([number] for number in range(CLAIMS_MAX + 5)))
    stream.take(3 * CLAIMS_MAX)
    stream.reconnect()
    assert len(stream.of.held) == CLAIMS_MAX


def marks(*wanted: int) -> list[int]:
    return [mark_of(BsonBatch(memoryview(event(n)), 1, NO_POSITION, 0, CodecOptions()).event_key(0)) for n in wanted]


def test_a_server_and_its_clients_name_an_event_alike() -> None:
    token = event_token(5).raw
    assert mark_of(token) == claim_of(token) == int.from_bytes(hashlib.sha256(token).digest()[:8], "little")


def test_runs_are_independent_and_each_in_order() -> None:
    stream, first = Stream.handed_out([1, 2, 3], [4], [5, 6])
    assert numbers(first) == [1, 4, 5]
    assert [each.attempt for each in first] == [1, 1, 1]
    stream.done(first[0])
    assert numbers(stream.take()) == [2]
    stream.done(first[2], first[1])
    assert numbers(stream.take()) == [6]
    assert not stream.of.ready


def test_whoever_settles_takes_the_next_of_the_run() -> None:
    stream = Stream()
    stream.deliver([1, 2], [3], [4])
    (first,) = stream.take(1)
    stream.done(first)
    assert numbers(stream.take(1)) == [2]


def test_settled_events_are_reported_once_in_ranges() -> None:
    stream, taken = Stream.handed_out(*([number] for number in range(1, 8)))
    stream.done(taken[5], taken[0], taken[1], taken[6], taken[3])
    stream.done(taken[0])
    assert stream.of.unsent == 5
    assert stream.outgoing() == ([(1, 2), (4, 4), (6, 7)], [])
    assert stream.outgoing() == ([], [])
    stream.of.settle(taken[0], Failed())
    assert stream.outgoing() == ([], [])


def test_a_failed_event_returns_the_rest_of_its_run() -> None:
    stream, (one, four) = Stream.handed_out([1, 2, 3], [4], window=4)
    stream.of.settle(one, Failed(30.0, "no"))
    assert stream.take() == []
    assert not stream.idle()
    (message,) = stream.of.outgoing()
    assert message == Settlement([], [(1, Failed(30.0, "no"))])
    stream.done(four)
    assert stream.idle()
    stream.outgoing()
    stream.deliver([1, 2, 3], attempts=[2, 1, 1])
    again = stream.take()
    assert (numbers(again), again[0].attempt, again[0].delivery) == ([1], 2, 5)


def test_what_waits_is_forgotten_with_the_stream_and_comes_again() -> None:
    stream = Stream()
    stream.deliver([1, 2], [3])
    (one,) = stream.take(1)
    stream.reconnect()
    assert not stream.of.ready
    stream.deliver([1, 2], [3])
    assert numbers(stream.take()) == [3], "2 waits for 1, which is in hand"
    stream.done(one)
    assert numbers(stream.take()) == [2]
    assert stream.outgoing() == ([(1, 1)], [])


def test_a_run_in_hand_goes_on_with_new_events_and_others_are_recognized_after_it() -> None:
    stream, (one, two) = Stream.handed_out([1], [2])
    stream.reconnect()
    stream.deliver([1, 11], [2, 12], [3])
    assert numbers(stream.take()) == [3]
    stream.done(two, one)
    assert numbers(stream.take()) == [11, 12]
    assert stream.outgoing() == ([(1, 1), (3, 3)], [])


@over("when", ["told before the loss", "not told", "while the stream was lost"])
def test_what_finished_meanwhile_is_settled_under_its_new_sequence(when: str) -> None:
    stream, (one, three) = Stream.handed_out([1, 2], [3])
    if when != "while the stream was lost":
        stream.done(one)
    if when == "told before the loss":
        stream.outgoing()
    stream.reconnect()
    stream.done(one)
    assert stream.outgoing() == ([], [])
    assert stream.awaits_repeats()
    stream.deliver([3], [1, 2])
    assert stream.outgoing() == ([(2, 2)], [])
    assert not stream.awaits_repeats()
    assert numbers(stream.take()) == [2]
    stream.done(three)
    assert stream.outgoing() == ([(1, 1)], [])


def test_what_others_have_is_void() -> None:
    stream, (one, two) = Stream.handed_out([1], [2])
    stream.done(one)
    stream.reconnect()
    stream.deliver([3])
    assert not stream.awaits_repeats()
    stream.done(two)
    assert stream.outgoing() == ([], [])
    stream.deliver([1], [2])
    assert numbers(stream.take()) == [3, 1, 2], "it comes back from those who had it"


@over("voided_by", ["another event", "progress"])
def test_what_comes_again_while_it_is_in_hand_is_not_handed_out_twice(voided_by: str) -> None:
    stream, (one, two) = Stream.handed_out([1], [2])
    stream.reconnect()
    if voided_by == "progress":
        stream.of.progress((2000, 1))  # it is a dead letter
    stream.deliver([3])
    assert numbers(stream.take()) == [3]
    stream.reconnect()
    assert sorted(stream.of.held) == sorted(marks(1, 2, 3)), "the next host may not have given it to others"
    stream.deliver([4], [1, 5])
    assert numbers(stream.take()) == [4]
    stream.done(two)
    assert stream.outgoing() == ([], []), "others may have it"
    stream.done(one)
    assert stream.outgoing() == ([(2, 2)], [])
    assert numbers(stream.take()) == [5]


@over("finishes", ["while there is no stream", "after others came", "after the progress"])
def test_a_dead_letter_that_has_finished_when_it_is_void_is_not_handed_out_again(finishes: str) -> None:
    stream, (one, two) = Stream.handed_out([1], [2])
    stream.reconnect()
    for step in ("while there is no stream", "after others came", "after the progress"):
        if step == "after others came":
            stream.deliver([3])
        if step == "after the progress":
            stream.of.progress((2000, 1))
        if step == finishes:
            stream.done(one)
            stream.of.settle(two, Failed(reject=True))
    stream.deliver([1], [2])
    assert numbers(stream.take()) == [3]
    assert stream.outgoing() == ([(2, 2)], [3])


@over("why", ["others had it", "the position was moved", "too many have finished since"])
def test_what_has_finished_when_it_is_void_is_handed_out_again_in_doubt(why: str) -> None:
    stream = Stream(window=2 * CLAIMS_MAX)
    stream.deliver([1], *([number] for number in range(2, 2 + CLAIMS_MAX)))
    in_hand = stream.take(2 * CLAIMS_MAX)
    stream.reconnect()
    stream.of.progress((9000, 1))
    stream.done(*in_hand[: None if why.startswith("too many") else 1])
    if why == "the position was moved":
        stream.reconnect()
        stream.of.progress((500, 1))
    stream.deliver([1], attempts=[2 if why == "others had it" else 1])
    assert (numbers(stream.take(1)), stream.outgoing()) == ([1], ([], []))


def test_progress_voids_what_is_before_it_and_a_heartbeat_voids_nothing() -> None:
    stream, (one, two) = Stream.handed_out([1], [2])
    stream.reconnect()
    stream.of.progress((1000, 1))
    stream.of.progress((1002, 1))
    stream.done(one, two)
    stream.deliver([2], [1], attempts=[2, 2])
    assert numbers(stream.take()) == [1], "the time of 1 was before the position"
    assert stream.outgoing() == ([(1, 1)], [])


def test_a_failure_that_the_server_may_not_know_is_reported_again() -> None:
    stream, (one,) = Stream.handed_out([1, 2])
    stream.of.settle(one, Failed(reason="no"))
    stream.outgoing()
    stream.reconnect()
    stream.deliver([1, 2])
    assert stream.take() == []
    assert stream.outgoing() == ([], [1])
    stream.reconnect()
    stream.deliver([1, 2], attempts=[2, 1])
    assert numbers(stream.take()) == [1], "the server knew it: this is the next attempt"
    assert stream.outgoing() == ([], [])


def test_a_failure_that_was_read_does_not_hide_the_next_attempt() -> None:
    stream, (failed,) = Stream.handed_out([1])
    stream.of.settle(failed, Failed())
    assert stream.outgoing() == ([], [1])
    stream.deliver([1], attempts=[2])
    (again,) = stream.take()
    stream.reconnect()
    stream.done(again)
    stream.deliver([1], attempts=[2])
    assert stream.take() == [], "it is finished"
    assert stream.outgoing() == ([(1, 1)], [])


def test_a_moved_position_delivers_all_again() -> None:
    stream, (one, two) = Stream.handed_out([1], [2])
    stream.done(one)
    stream.of.forget()
    stream.sequence = 0
    stream.deliver([1], [2])
    stream.done(two)
    assert numbers(stream.take()) == [1, 2]
    assert stream.outgoing() == ([], [])


def test_what_waited_does_not_void_what_is_in_hand_after_it() -> None:
    stream, (one, two) = Stream.handed_out([1, 11], [2])
    stream.done(one)
    stream.outgoing()
    stream.reconnect()
    stream.deliver([11], [2])
    assert numbers(stream.take()) == [11]
    stream.done(two)
    assert stream.outgoing() == ([(2, 2)], [])


def test_two_losses_before_the_repeats_came() -> None:
    stream = Stream()
    stream.deliver([1], [2], [3])
    one, two = stream.take(2)
    stream.reconnect()
    stream.deliver([1])
    stream.reconnect()
    stream.done(two)
    stream.deliver([1], [2], [3])
    assert numbers(stream.take()) == [3]
    stream.done(one)
    assert stream.outgoing() == ([(1, 2)], [])


def test_what_is_never_settled_stays_within_the_window_over_reconnects() -> None:
    stream = Stream(window=4)
    for first in range(1, 101, 4):
        stream.deliver(*([number] for number in range(first, first + 4)))
        stream.take()
        stream.reconnect()
    assert len(stream.of.held) == 4, "the void ones, as no other was handed out"
    stream.deliver([1], [2], [200], [201])
    (oldest, *_) = stream.of._in_hand
    stream.done(oldest)
    assert stream.of.ready == 1
    assert numbers(stream.take()) == [200]


def test_what_the_next_host_was_told_is_not_awaited() -> None:
    stream, (one, two, three, four) = Stream.handed_out([1], [2], [3], [4])
    stream.done(one)
    stream.of.settle(four, Failed())
    stream.reconnect()
    stream.done(two)
    stream.of.tell(told=True)
    assert not stream.awaits_repeats()
    stream.done(three)
    assert stream.awaits_repeats(), "it was told as held, so it comes again"
    stream.deliver([3])
    assert (stream.outgoing(), stream.awaits_repeats()) == (([(1, 1)], []), False)
    stream.reconnect()
    stream.of.tell(told=True)
    stream.of.tell(told=False)
    assert stream.awaits_repeats(), "the same host ignores what it is told"


def test_what_the_server_has_read_is_not_kept() -> None:
    """A slow event of the first hour must not make the member remember all that was settled since."""
    stream = Stream(window=4)
    stream.deliver([1])
    stream.take()
    for number in range(2, 1000):
        stream.deliver([number])
        stream.done(*stream.take())
        stream.outgoing()
    assert len(stream.of._unconfirmed) <= 4
    stream.reconnect()
    assert len(stream.of._expected) <= 5


def test_what_breaks_the_protocol() -> None:
    def a_gap(stream: Stream) -> None:
        stream.sequence = 1
        stream.deliver([1])

    def other_runs(stream: Stream) -> None:
        batch = BsonBatch(memoryview(event(1)), 1, NO_POSITION, 0, CodecOptions())
        stream.of.arrive(1, batch, [2], [])

    def no_runs(stream: Stream) -> None:
        batch = BsonBatch(memoryview(event(1)), 1, NO_POSITION, 0, CodecOptions())
        stream.of.arrive(1, batch, [], [])

    def attempts(stream: Stream) -> None:
        stream.deliver([1, 2], attempts=[1])

    def more_than_the_window(stream: Stream) -> None:
        stream.deliver([1], [2], [3])

    for broken in (a_gap, other_runs, no_runs, attempts, more_than_the_window):
        with pytest.raises(ProtocolError):
            broken(Stream(window=2))


def test_a_message_stays_within_the_limits_of_the_server() -> None:
    stream = Stream(window=8000)
    stream.deliver(*([number] for number in range(1, 8001)))
    taken = stream.take(8000)
    for number, each in enumerate(taken):
        if number % 2 == 0:
            stream.of.settle(each, DONE if number % 40 else Failed(1e8, "é" * 512))
    messages = stream.of.outgoing()
    assert sum(len(message.done) + len(message.failed) for message in messages) == 4000
    for message in messages:
        assert len(message.done) + len(message.failed) <= 1000
        assert len(settle_bytes(message)) <= 16 * 1024
