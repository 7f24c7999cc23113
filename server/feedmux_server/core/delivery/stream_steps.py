"""When a stream reads MongoDB, rests, closes its cursor and ends: the decisions of its pump.

Pure; `streams.pump` carries them out. The states of a stream are in `shared_stream`.
"""

from dataclasses import dataclass
from enum import StrEnum

from feedmux_server.core.delivery.feed_streams import FeedStreams
from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState


class Step(StrEnum):
    READ = "read"
    """Open the cursor if there is none, then do one getMore."""
    REST = "rest"
    """Wait for a change of demand, and then decide with `after_rest`."""
    CLOSE_CURSOR = "close the cursor"
    """Close the cursor in MongoDB, retain the position, and continue to rest."""
    END = "end"


@dataclass(frozen=True, slots=True)
class RestLimits:
    """How long a stream rests."""

    unused_stream_s: float = 10.0
    """A stream without subscribers stays open for this long, so that a reconnect finds its ring."""
    idle_close_s: float = 60.0
    """If no subscriber can take more for this long, the cursor in MongoDB is closed; the position is retained."""


def next_step(stream: SharedStream, streams: FeedStreams, *, slots_wanted: bool) -> Step:
    """What the pump does next. `slots_wanted`: whether a subscriber waits for a slot to read history."""
    if stream.state is StreamState.ENDED:
        return Step.END
    if stream.wants_more() or (stream.subscribers and not stream.opened):
        return Step.END if streams.streams.is_superfluous(stream) else Step.READ
    if stream.subscribers:
        # A stream without a subscriber that has credit releases its slot.
        gives_way = slots_wanted and streams.streams.is_catch_up(stream) and not stream.has_usable_credit
        return Step.END if gives_way else Step.REST
    if stream.unwanted or streams.streams.is_superfluous(stream) or stream.state is StreamState.RECOVERING:
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
