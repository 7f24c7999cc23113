"""Deliberately broken builds of the parts, each with the guarantee whose checker must notice.

A mutant is one attribute of one class replaced for the length of a test. A checker that misses its mutant judges
nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from feedmux_server.core.ack_tracker import AckTracker
from feedmux_server.core.chunk import Chunk
from feedmux_server.core.credit import CreditWindow
from feedmux_server.core.feed_streams import FeedStreams
from feedmux_server.core.replay_buffer import ReplayBuffer
from feedmux_server.core.resume_token import ResumeToken
from feedmux_server.core.shared_stream import SharedStream
from feedmux_server.core.subscriber import Delivery, JoinPoint, Subscriber
from tests.model.clients import FakeStore
from tests.model.source import FakeCursor, FakeSource


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    guarantee: str
    target: type
    attribute: str
    broken: Any

    def __str__(self) -> str:
        return self.name


@contextmanager
def built_with(mutant: Mutant) -> Iterator[None]:
    original = mutant.target.__dict__[mutant.attribute]
    setattr(mutant.target, mutant.attribute, mutant.broken)
    try:
        yield
    finally:
        setattr(mutant.target, mutant.attribute, original)


MUTANTS: Final[list[Mutant]] = []


def mutant(guarantee: str, target: type, attribute: str) -> Callable[[Any], Any]:
    """Registers the decorated function in place of `target.attribute`, as a property if that is one."""

    def register(broken: Any) -> Any:
        in_place = property(broken) if isinstance(target.__dict__[attribute], property) else broken
        MUTANTS.append(Mutant(broken.__name__, guarantee, target, attribute, in_place))
        return broken

    return register


_locate = ReplayBuffer.locate
_join = FeedStreams.join
_attach = FeedStreams._attach
_take = Subscriber.take
_grant = CreditWindow.grant
_spend = CreditWindow.spend
_ack = AckTracker.ack


def _on_a_filled_ring(subscriber: Subscriber, stream: SharedStream) -> bool:
    return stream.ring.oldest.is_after(subscriber.at.place) or subscriber.seq < stream.ring.next_seq


@mutant("Ordered", FeedStreams, "_attach")
def hand_over_to_the_oldest_event(self: FeedStreams, subscriber: Subscriber, stream: SharedStream) -> None:
    _attach(self, subscriber, stream)
    if _on_a_filled_ring(subscriber, stream):
        subscriber.seq, subscriber.index = stream.ring.first_seq, 0
        subscriber.at = JoinPoint(stream.ring.oldest, exact=True)


@mutant("Ordered", Subscriber, "take")
def parts_of_a_message_in_reverse(self: Subscriber) -> object:
    taken = _take(self)
    return replace(taken, parts=taken.parts[::-1]) if isinstance(taken, Delivery) else taken


@mutant("Whole", Subscriber, "take")
def parts_of_two_messages_swapped(self: Subscriber) -> object:
    taken = _take(self)
    if isinstance(taken, Delivery) and len(taken.parts) > 2:
        return replace(taken, parts=(taken.parts[1], taken.parts[0], *taken.parts[2:]))
    return taken


@mutant("Complete", Subscriber, "take")
def rejoins_at_the_head(self: Subscriber) -> object:
    if self.stream is not None and self.seq < self.stream.ring.first_seq:
        self.seq, self.index = self.stream.ring.first_seq, 0
        self.at = JoinPoint(self.stream.ring.oldest, exact=True)
    return _take(self)


@mutant("Complete", ReplayBuffer, "locate")
def locate_one_too_far(self: ReplayBuffer, place: ResumeToken) -> tuple[int, int]:
    seq, index = _locate(self, place)
    return (seq, index + 1) if seq < self.next_seq and index < self[seq].count else (seq, index)


@mutant("Unique", Subscriber, "_skip_passed")
def passed_events_not_skipped(self: Subscriber, chunk: Chunk) -> None:
    return


@mutant("Unique", ReplayBuffer, "locate")
def locate_one_too_near(self: ReplayBuffer, place: ResumeToken) -> tuple[int, int]:
    seq, index = _locate(self, place)
    if index == 0 and seq > self.first_seq:
        return seq - 1, self[seq - 1].count - 1
    return seq, max(0, index - 1)


@mutant("At least once", Chunk, "ack_place")
def an_ack_stores_the_end_of_the_chunk(self: Chunk, index: int) -> ResumeToken:
    return self.end


@mutant("At least once", AckTracker, "progress")
def progress_acks_what_is_outstanding(self: AckTracker, place: ResumeToken) -> bool:
    moved = place.is_after(self.place)
    self.place = place if moved else self.place
    return moved


@mutant("Resumable or loud", FakeSource, "open")
def lost_history_is_skipped(self: FakeSource, at: JoinPoint) -> FakeCursor:
    return FakeCursor(self, JoinPoint(self.oldest) if self.oldest.is_after(at.place) else at)


@mutant("Resumable or loud", Subscriber, "end_met")
def goes_on_behind_an_invalidate(self: Subscriber) -> None:
    self.rejoin(self.at)


@mutant("Resumable or loud", FeedStreams, "join")
def a_native_token_is_taken_as_known(self: FeedStreams, subscriber: Subscriber) -> None:
    subscriber.at = replace(subscriber.at, native=None, exact=False)
    _join(self, subscriber)


@mutant("Bookmarkable", Subscriber, "progress")
def progress_ahead_of_delivery(self: Subscriber) -> ResumeToken:
    return self.stream.ring.newest if self.stream is not None else self.at.place


@mutant("Bookmarkable", Chunk, "place_behind")
def a_batch_ends_with_its_chunk(self: Chunk, index: int) -> ResumeToken:
    return self.end


@mutant("Bounded", CreditWindow, "spend")
def credit_is_spent_by_half(self: CreditWindow, events: int, size: int) -> None:
    _spend(self, events // 2, size // 2)


@mutant("Bounded", CreditWindow, "spend")
def bytes_cost_nothing(self: CreditWindow, events: int, size: int) -> None:
    _spend(self, events, 0)


@mutant("Bounded", AckTracker, "room")
def no_bound_on_unacked(self: AckTracker) -> int:
    return 1_000_000


@mutant("Bounded", Subscriber, "ack")
def acks_return_credit(self: Subscriber, sequence: int) -> bool:
    assert self.acks is not None
    before = self.acks.acked
    moved = self.acks.ack(sequence)
    self.credit.grant(self.acks.acked - before, 0, zero_allowed=True)
    self.resume()
    return moved


@mutant("Bounded", ReplayBuffer, "trim")
def a_ring_without_bounds(self: ReplayBuffer, keep_seq: int) -> None:
    pass


@mutant("Monotone commit", FakeStore, "is_forward")
def older_commits_are_taken(self: FakeStore, commit: object) -> bool:
    return True


@mutant("Fenced", FakeStore, "is_current")
def older_epochs_may_commit(self: FakeStore, commit: object) -> bool:
    return True


@mutant("Convergent", Subscriber, "resume")
def credit_does_not_wake(self: Subscriber) -> None:
    return


@mutant("Convergent", SharedStream, "wake_takers")
def a_batch_wakes_nobody(self: SharedStream) -> None:
    return


@mutant("Convergent", SharedStream, "poke")
def the_pump_is_not_told(self: SharedStream) -> None:
    return


@mutant("Convergent", FeedStreams, "close")
def a_closed_stream_keeps_its_subscribers(self: FeedStreams, stream: SharedStream) -> None:
    self.streams.remove(stream)
