"""The feeds of a tenant: counted, and spare ones closed for others."""

from feedmux_server.core.limits.open_feeds import OpenFeeds
from tests.unit.core.limits.quota_support import refused


def spares_of(feeds: OpenFeeds, *names: str) -> list[str]:
    """Open each feed as a spare; the returned list names the feeds that were closed."""
    closed: list[str] = []
    for feed in names:
        feeds.open(feed)

        def give_up(feed: str = feed) -> None:
            closed.append(feed)
            feeds.close(feed)

        feeds.spare(feed, give_up)
    return closed


def test_spare_feeds_give_way_the_oldest_first_and_only_as_far_as_needed() -> None:
    feeds = OpenFeeds(3)
    closed = spares_of(feeds, "one", "two", "three")
    feeds.give_up_spares("two")
    assert closed == []  # a feed that is read already needs no room
    feeds.give_up_spares("four")
    assert closed == ["one"]
    feeds.open("four")
    feeds.unspare("two")
    feeds.give_up_spares("five")
    assert closed == ["one", "three"]
    feeds.open("five")
    feeds.give_up_spares("six")
    assert closed == ["one", "three"]
    refused(lambda: feeds.open("six"))


def test_a_spare_feed_that_is_read_otherwise_too_makes_no_room() -> None:
    feeds = OpenFeeds(1)
    closed = spares_of(feeds, "one")
    feeds.open("one")
    feeds.give_up_spares("two")
    assert closed == []


def test_a_feed_counts_once_however_often_it_is_read() -> None:
    feeds = OpenFeeds(2)
    for feed in ("one", "one", "two"):
        feeds.open(feed)
    error = refused(lambda: feeds.open("three"))
    assert error.metadata == {"quota": "shared_streams", "limit": "2"}
    assert error.retry_after_s
    feeds.close("one")
    refused(lambda: feeds.open("three"))
    feeds.close("one")
    feeds.open("three")
    assert (set(feeds), len(feeds), "one" in feeds) == ({"two", "three"}, 2, False)
