"""Which stream of a feed serves a position."""

from feedmux_server.core.delivery.shared_stream import SharedStream
from feedmux_server.core.delivery.stream_set import is_ahead
from tests.unit.core.delivery.streams_support import Feed, behind, error, fill, opened, stream_of


def two_streams() -> tuple[Feed, SharedStream, SharedStream]:
    """A stream with the events 10 to 12, and one with 1 to 3."""
    feed = Feed()
    ahead = stream_of(feed.subscriber(behind(9)))
    fill(ahead, 10, 12)
    late = stream_of(feed.subscriber(behind(0)))
    fill(late, 1, 3)
    return feed, ahead, late


def test_the_leading_stream_is_the_one_furthest_ahead_that_has_not_ended() -> None:
    feed, ahead, late = two_streams()
    streams = feed.streams.streams
    assert (streams.live(), list(streams), len(streams)) == (ahead, [ahead, late], 2)
    assert streams.is_beside(late)
    assert not streams.is_beside(ahead)
    ahead.end(error())
    assert streams.live() is late
    assert not streams.is_beside(ahead)
    assert not streams.is_superfluous(ahead), "its subscribers still read its ring"
    late.end(error())
    assert streams.live() is None


def test_a_position_is_served_by_the_stream_furthest_ahead_that_covers_it() -> None:
    feed, ahead, late = two_streams()
    streams = feed.streams.streams
    assert streams.covering(behind(11)) is ahead
    assert streams.covering(behind(2)) is late
    assert streams.covering(behind(5)) is None
    fill(late, 4, 11)
    assert streams.covering(behind(11)) is ahead, "both cover it"
    assert streams.covering(behind(12)) is ahead
    assert streams.behind(behind(12)) is late, "it will reach the position, however late"
    fill(late, 12, 20)
    assert streams.covering(behind(11)) is late
    assert streams.live() is late
    assert streams.behind(behind(20)) is ahead, "the nearest one"


def test_at_equal_positions_subscribers_move_to_the_older_stream() -> None:
    _, ahead, late = two_streams()
    assert is_ahead(ahead, late)
    assert not is_ahead(late, ahead)
    fill(late, 4, 12)
    assert ahead.id < late.id
    assert is_ahead(ahead, late)
    assert not is_ahead(late, ahead)


def test_a_stream_that_nobody_reads_or_would_join_is_superfluous() -> None:
    feed, ahead, late = two_streams()
    streams = feed.streams.streams
    (reader,) = late.subscribers.values()
    assert not streams.is_superfluous(late)
    feed.streams.remove(reader)
    assert streams.is_superfluous(late)
    (reader,) = ahead.subscribers.values()
    feed.streams.remove(reader)
    assert not streams.is_superfluous(opened(ahead)), "the leading stream lingers"
