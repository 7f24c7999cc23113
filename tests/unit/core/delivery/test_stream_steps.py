"""When a stream reads, rests, closes its cursor and ends."""

from feedmux_server.core.delivery.shared_stream import SharedStream, StreamState
from feedmux_server.core.delivery.stream_steps import RestLimits, Step, after_rest, next_step, rest_s
from tests.tables import over
from tests.unit.core.delivery.streams_support import Feed, behind, opened

LIMITS = RestLimits(unused_stream_s=10.0, idle_close_s=60.0)


def step(feed: Feed, stream: SharedStream) -> Step:
    return next_step(stream, feed.streams.open)


def test_it_opens_for_a_subscriber_without_credit() -> None:
    """So that the subscriber learns at once whether MongoDB accepts the feed."""
    feed, subscriber = Feed.followed(behind(0))
    subscriber.credit.events = 0
    assert step(feed, feed.stream_of(subscriber)) is Step.READ


@over("unwanted", [False, True])
def test_without_subscribers_it_lingers_unless_its_tenant_needs_the_room(*, unwanted: bool) -> None:
    feed, subscriber = Feed.followed(behind(0))
    stream = opened(feed.stream_of(subscriber))
    feed.streams.remove(subscriber)
    if unwanted:
        stream.close_early()
    assert step(feed, stream) is (Step.END if unwanted else Step.REST)
    assert rest_s(stream, LIMITS) == 10.0


def test_without_subscribers_it_does_not_recover() -> None:
    feed, subscriber = Feed.followed(behind(0))
    stream = opened(feed.stream_of(subscriber))
    stream.move_to(StreamState.RECOVERING)
    assert step(feed, stream) is Step.READ
    feed.streams.remove(subscriber)
    assert step(feed, stream) is Step.END


def test_after_a_rest_without_news_the_cursor_is_closed_or_the_stream_ends() -> None:
    feed, subscriber = Feed.followed(behind(0))
    subscriber.credit.events = 0
    stream = opened(feed.stream_of(subscriber))
    assert after_rest(stream, demand_changed=True) is Step.REST
    assert after_rest(stream, demand_changed=False) is Step.CLOSE_CURSOR
    feed.grant(subscriber, 1, 100)
    assert after_rest(stream, demand_changed=False) is Step.REST
    feed.streams.remove(subscriber)
    assert after_rest(stream, demand_changed=False) is Step.END
    assert after_rest(stream, demand_changed=True) is Step.REST
