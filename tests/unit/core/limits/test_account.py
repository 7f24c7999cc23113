"""A tenant's account: what is open is counted, and other quotas apply at once."""

import heapq
from itertools import pairwise

from feedmux_server.core.limits.account import LOOKS_PER_S, Account, Accounts, LookTurns
from feedmux_server.core.limits.quota import Quotas, exceeded
from tests.tables import over
from tests.unit.core.limits.quota_support import refused


def test_sessions_and_calls_are_counted_and_given_back() -> None:
    account = Account("t", Quotas(sessions=1, calls=1), 0.0)
    for open_one, close_one in (
        (account.open_session, account.close_session),
        (account.open_call, account.close_call),
    ):
        for _ in range(2):
            open_one()
            assert refused(open_one).metadata["limit"] == "1"
            close_one()


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


@over("groups, busy", [(10, 0), (100, 0), (1_000, 0), (50, 5), (50, 50)])
def test_looks_for_letters_do_not_grow_with_the_groups_nor_with_what_they_delete(groups: int, busy: int) -> None:
    """Groups look each 5 s, and some of them, which replay letters, as soon as they may."""
    turns, counted = LookTurns(), list[float]()
    due = [(0.0, group, False) for group in range(groups)]
    while due[0][0] < 60.0:
        now_s, group, has_turn = heapq.heappop(due)
        if has_turn:
            turns.end()
            counted.append(now_s)
            heapq.heappush(due, (now_s + (0.01 if group < busy else 5.0), group, False))
        else:
            at_s = turns.take(now_s)
            assert at_s - now_s < groups / LOOKS_PER_S + 0.001, "a turn for each group at most is before it"
            heapq.heappush(due, (at_s, group, True))
    assert all(after - before > 0.049 for before, after in pairwise(counted))
    assert len(counted) >= 59 * min(groups / 10, LOOKS_PER_S)


def test_turns_to_look_that_nobody_uses_delay_nobody() -> None:
    turns = LookTurns()
    for _ in range(1_000):
        turns.take(0.0)
        turns.end()
    assert turns.take(0.0) <= 1 / LOOKS_PER_S


@over(("given", "retry_after_s"), [({}, 5.0), ({"retry_after_s": None}, None)])
def test_it_names_the_quota_and_says_when_to_try_again(given: dict[str, float | None], retry_after_s: float) -> None:
    error = exceeded("sessions", 3, **given)
    assert "quota sessions is 3" in error.message
    assert error.metadata == {"quota": "sessions", "limit": "3"}
    assert (error.status, error.retry_after_s) == ("RESOURCE_EXHAUSTED", retry_after_s)
