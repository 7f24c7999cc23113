"""What the streams of a key are to each other, and what each does next: read MongoDB, rest, close its cursor, or end.

Pure; `streams.pump` carries the steps out. The states of a stream are in `shared_stream`. Which stream a subscriber
reads is in `feed_streams`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState


class Step(StrEnum):
    READ = "read"
    """Open the cursor if there is none, then do one getMore."""
    REST = "rest"
    """Wait for a change of demand, and then decide with `after_rest`."""
    CLOSE_CURSOR = "close the cursor"
    """Close the cursor in MongoDB, retain the position, and continue to rest."""
    GIVE_WAY = "give way"
    """End, so that another stream gets the slot (`slots`)."""
    END = "end"


@dataclass(frozen=True, slots=True)
class RestLimits:
    """How long a stream rests."""

    unused_stream_s: float = 10.0
    """A stream without subscribers stays open for this long, so that a reconnect finds its ring."""
    idle_close_s: float = 60.0
    """If no subscriber can take more for this long, the cursor in MongoDB is closed; the position is retained."""
    slot_turn_s: float = 10.0
    """If subscribers wait for a slot, a stream that reads history without a rest keeps its slot for this long. Each
    hand-over costs MongoDB another cursor; a longer time makes subscribers wait longer."""


class OpenStreams(list[SharedStream]):
    """The streams of a key in the order of their opening, and what each is to the others."""

    __slots__ = ()

    def live(self) -> SharedStream | None:
        """The stream that is furthest ahead and has not ended. One that others may not join is chosen only if there is
        no other, and one that copies documents never."""
        best: SharedStream | None = None
        for stream in self:
            if (not stream.ended and not stream.copies) and (
                best is None
                or (stream.joinable and not best.joinable)
                or (stream.joinable == best.joinable and stream.ring.newest.is_after(best.ring.newest))
            ):
                best = stream
        return best

    def is_beside(self, stream: SharedStream) -> bool:
        """Whether the stream is open in addition to the live one: it catches up, or it starts at a client's token at
        the present and is not merged with the others until MongoDB has checked that token at the feed's next event."""
        return not stream.ended and stream is not self.live()

    def is_catch_up(self, stream: SharedStream) -> bool:
        """Whether the stream reads history, in addition to the live stream. Such streams need a slot."""
        return not stream.at_present and self.is_beside(stream)

    def beside(self) -> Iterator[SharedStream]:
        """The streams that are open in addition to the live one."""
        live = self.live()
        return (stream for stream in self if not stream.ended and stream is not live)

    @property
    def catch_up_count(self) -> int:
        return sum(not stream.at_present for stream in self.beside())

    def is_superfluous(self, stream: SharedStream) -> bool:
        """Whether no subscriber reads the stream and none would join it."""
        return not stream.ended and not stream.subscribers and (not stream.joinable or stream is not self.live())


def next_step(stream: SharedStream, others: OpenStreams) -> Step:
    """What the pump does next, if the stream need not give way (`slots`)."""
    if stream.ended:
        return Step.END
    if stream.wants_more() or (stream.subscribers and not stream.opened):
        return Step.END if others.is_superfluous(stream) else Step.READ
    if stream.subscribers:
        return Step.REST
    if stream.unwanted or others.is_superfluous(stream) or stream.state is StreamState.RECOVERING:
        return Step.END
    return Step.REST


def rest_s(stream: SharedStream, limits: RestLimits) -> float:
    """The maximum duration of a rest."""
    return limits.idle_close_s if stream.subscribers else limits.unused_stream_s


def after_rest(stream: SharedStream, *, demand_changed: bool) -> Step:
    """What the pump does after a rest. `Step.REST` means: decide again with `next_step`."""
    if demand_changed or stream.wants_more():
        return Step.REST
    return Step.CLOSE_CURSOR if stream.subscribers else Step.END
