"""Quotas: counts reject, rates throttle, and what one holder releases is available to others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.limits.account import Account, Accounts
from feedmux_server.core.limits.quota import Quotas
from feedmux_server.core.limits.rates import TokenBucket


def refused(call: object) -> FeedmuxError:
    assert callable(call)
    with pytest.raises(FeedmuxError) as caught:
        call()
    assert caught.value.reason is ErrorReason.QUOTA_EXCEEDED
    return caught.value


def test_streams_feeds_and_calls_are_counted_and_given_back() -> None:
    account = Account("t", Quotas(sessions=2, shared_streams=2, calls=1), 0.0)
    account.open_session()
    account.open_session()
    assert refused(account.open_session).metadata == {"quota": "sessions", "limit": "2"}
    account.close_session()
    account.open_session()
    account.feeds.open("one")
    account.feeds.open("one")
    account.feeds.open("two")
    error = refused(lambda: account.feeds.open("three"))
    assert error.metadata == {"quota": "shared_streams", "limit": "2"}
    assert error.retry_after_s
    account.feeds.close("one")
    refused(lambda: account.feeds.open("three"))
    account.feeds.close("one")
    account.feeds.open("three")
    assert (account.sessions, set(account.feeds)) == (2, {"two", "three"})
    account.open_call()
    assert refused(account.open_call).metadata == {"quota": "calls", "limit": "1"}
    account.close_call()
    account.open_call()


def spares_of(account: Account, *feeds: str) -> list[str]:
    """Open each feed as a spare; the returned list names the feeds that were closed."""
    closed: list[str] = []
    for feed in feeds:
        account.feeds.open(feed)

        def give_up(feed: str = feed) -> None:
            closed.append(feed)
            account.feeds.close(feed)

        account.feeds.spare(feed, give_up)
    return closed


def test_spare_feeds_give_way_the_oldest_first_and_only_as_far_as_needed() -> None:
    account = Account("t", Quotas(shared_streams=3), 0.0)
    closed = spares_of(account, "one", "two", "three")
    account.feeds.give_up_spares("two")
    assert closed == []  # a feed that is read already needs no room
    account.feeds.give_up_spares("four")
    assert closed == ["one"]
    account.feeds.open("four")
    account.feeds.unspare("two")
    account.feeds.give_up_spares("five")
    assert closed == ["one", "three"]
    account.feeds.open("five")
    account.feeds.give_up_spares("six")
    assert closed == ["one", "three"]
    refused(lambda: account.feeds.open("six"))


def test_a_spare_feed_that_is_read_otherwise_too_makes_no_room() -> None:
    account = Account("t", Quotas(shared_streams=1), 0.0)
    closed = spares_of(account, "one")
    account.feeds.open("one")
    account.feeds.give_up_spares("two")
    assert closed == []


def test_calls_in_a_loop_are_slowed_down_and_calls_in_a_flood_refused() -> None:
    account = Account("t", Quotas(requests_per_s=2), 0.0)
    assert [account.rates.request(0.0) for _ in range(10)] == [0.0] * 10  # five seconds' worth at once
    waits = [account.rates.request(0.0) for _ in range(2)]
    assert waits == pytest.approx([0.0, 0.5], abs=0.01)
    error = refused(lambda: (account.rates.request(0.0), account.rates.request(0.0)))
    assert error.metadata["quota"] == "requests_per_s"
    assert error.retry_after_s == pytest.approx(1.5, abs=0.5)
    # A caller that waits as long as the server asks keeps to the rate, and is never rejected.
    now_s, calls = 10.0, 0
    while now_s < 110.0:
        now_s += account.rates.request(now_s)
        calls += 1
    assert calls == pytest.approx(200, rel=0.1)


def test_one_delivery_may_overdraw_a_rate_and_its_debt_is_waited_for() -> None:
    account = Account("t", Quotas(events_per_s=100, bytes_per_s=1_000_000), 0.0)
    assert account.rates.delivery_wait_s(0.0) == 0
    account.sent(400, 10, 0.0)
    assert account.rates.delivery_wait_s(0.0) == pytest.approx(3.0, abs=0.01)
    assert account.rates.delivery_wait_s(2.0) == pytest.approx(1.0, abs=0.01)
    assert account.rates.delivery_wait_s(3.1) == 0
    account.sent(1, 2_000_000, 3.1)
    assert account.rates.delivery_wait_s(3.1) == pytest.approx(1.0, abs=0.01)
    assert (account.events_sent, account.bytes_sent) == (401, 2_000_010)


def test_room_comes_back_with_acks_and_wakes_who_waits() -> None:
    woken: list[str] = []
    account = Account("t", Quotas(outstanding_bytes=100), 0.0)
    room = []
    for _ in range(2):
        room.append(account.outstanding.has_room)
        account.outstanding.hold(60)
    assert [*room, account.outstanding.has_room] == [True, True, False]
    account.outstanding.when_room(lambda: woken.append("one"))
    account.outstanding.release(10)
    assert not woken
    account.outstanding.release(20)
    assert woken == ["one"]
    account.outstanding.release(90)
    assert woken == ["one"]


def test_a_backlog_at_its_bound_pauses_its_own_tenant_until_it_acknowledges() -> None:
    woken: list[str] = []
    account = Account("t", Quotas(outstanding_bytes=100), 0.0)
    account.outstanding.retain(99)
    assert [account.outstanding.has_room, account.outstanding.note_backlog()] == [True, False]
    account.outstanding.retain(1)
    assert [account.outstanding.has_room, account.outstanding.backlog_fits] == [False, False]
    assert [account.outstanding.note_backlog() for _ in range(3)] == [True, False, False], "it is reported once"
    account.outstanding.when_room(lambda: woken.append("one"))
    account.outstanding.retain(-1)
    assert woken == ["one"]
    account.outstanding.retain(1)
    assert account.outstanding.note_backlog(), "and reported again, when the backlog reaches its bound again"


def test_all_backlogs_together_are_bounded_and_the_largest_pay() -> None:
    accounts = Accounts(lambda _: Quotas(), lambda: 0.0)
    accounts.backlog.bytes_max = 100
    woken: list[str] = []
    for tenant, size in (("most", 60), ("some", 39), ("least", 10), ("none", 0)):
        accounts.of(tenant).outstanding.retain(size)
    assert accounts.backlog.bytes == 109
    paused = [each.tenant for each in accounts if not each.outstanding.has_room]
    assert paused == ["most", "some"], "a tenant with less than an equal share continues"
    for tenant in paused:
        accounts.of(tenant).outstanding.when_room(lambda tenant=tenant: woken.append(tenant))  # type: ignore[misc]
    accounts.of("most").outstanding.retain(-8)
    assert not woken
    accounts.of("most").outstanding.retain(-8)
    assert sorted(woken) == ["most", "some"], "an ack of another tenant wakes a tenant that waits for it"
    for tenant, size in (("most", 44), ("some", 39), ("least", 10)):
        accounts.of(tenant).outstanding.retain(-size)
    assert (accounts.backlog.bytes, accounts.backlog.tenants) == (0, {})


def test_other_limits_apply_at_once_and_wake_who_waits() -> None:
    quotas = {"t": Quotas(outstanding_bytes=10, sessions=1)}
    accounts = Accounts(lambda tenant: quotas.get(tenant, Quotas()), lambda: 0.0)
    account = accounts.of("t")
    assert accounts.of("t") is account
    woken: list[str] = []
    account.outstanding.hold(10)
    account.outstanding.when_room(lambda: woken.append("one"))
    accounts.refresh()
    assert not woken
    quotas["t"] = Quotas(outstanding_bytes=20, sessions=1, pipeline_bytes=5)
    accounts.refresh()
    assert woken == ["one"]
    assert account.outstanding.has_room
    assert refused(lambda: account.check_pipeline(6)).retry_after_s is None
    account.check_pipeline(5)
    assert refused(lambda: Account("t", Quotas(subscriptions=2), 0.0).check_subscriptions(2)).metadata["limit"] == "2"


def test_without_quotas_nothing_is_throttled() -> None:
    account = Accounts(lambda _: Quotas(), lambda: 0.0).of("anyone")
    for _ in range(1000):
        account.rates.request(0.0)
        account.sent(1_000_000, 1 << 40, 0.0)
        account.outstanding.hold(1 << 40)
    assert account.rates.delivery_wait_s(0.0) == 0
    assert account.outstanding.has_room


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 500)), min_size=1, max_size=60))
def test_a_bucket_never_gives_more_than_its_rate_allows(takings: list[tuple[float, int]]) -> None:
    rate, now_s, taken, largest = 100.0, 0.0, 0, 0
    bucket = TokenBucket(rate, 1.0, now_s)
    for pause_s, amount in takings:
        now_s += pause_s
        now_s += bucket.wait_s(now_s)
        assert bucket.wait_s(now_s) == 0
        bucket.take(amount, now_s)
        taken, largest = taken + amount, max(largest, amount)
    assert taken <= rate * (now_s + 1.0) + largest


def test_a_stream_is_read_as_often_as_one_of_its_tenants_may() -> None:
    now_s = 0.0
    quotas = {"few": Quotas(reads_per_s=10), "many": Quotas(reads_per_s=100)}
    accounts = Accounts(lambda tenant: quotas[tenant], lambda: now_s)
    for _ in range(10):
        assert accounts.read_wait_s(["few"]) == 0.0
        accounts.read(["few"])
    assert accounts.read_wait_s(["few"]) > 0.0
    assert accounts.read_wait_s(["few", "many"]) == 0.0
    # A shared read charges each tenant its part.
    for _ in range(200):
        assert accounts.read_wait_s(["few", "many"]) == 0.0
        accounts.read(["few", "many"])
    assert accounts.read_wait_s(["few", "many"]) > 0.0
    assert accounts.read_wait_s([]) == 0.0
    now_s = 1.1
    assert accounts.read_wait_s(["many"]) == 0.0
