"""When to renew a lease, and when to restore data that Redis lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.limits.lease import LeaseRules
from tests.tables import over

RULES = LeaseRules(lease_s=30.0, tombstone_s=3600.0)


@over(("age_s", "due"), [(0.0, False), (9.9, False), (10.0, True), (31.0, True)])
def test_renewal_is_due_after_a_third(age_s: float, due: bool) -> None:
    assert RULES.renew_due(100.0, 100.0 + age_s) is due


def test_restores_only_where_a_deletion_would_still_be_known() -> None:
    assert RULES.may_restore(0.0, 1799.0)
    assert not RULES.may_restore(0.0, 1800.0)


@given(st.floats(0.01, 1e5), st.floats(0, 1e9), st.floats(0, 1e6))
def test_two_renewals_may_fail_before_the_lease_does(lease_s: float, confirmed_s: float, age_s: float) -> None:
    rules = LeaseRules(lease_s=lease_s, tombstone_s=lease_s * 10)
    now_s = confirmed_s + age_s
    if age_s > lease_s * 1.001:
        assert rules.renew_due(confirmed_s, now_s)
    assert 2 * (rules.renew_after_s + rules.check_every_s) < rules.lease_s
    if not rules.may_restore(confirmed_s, now_s):
        assert age_s > lease_s


@over(("lease_s", "tombstone_s"), [(0.0, 10.0), (-1.0, 10.0), (10.0, 39.0)])
def test_senseless_rules_are_refused(lease_s: float, tombstone_s: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        LeaseRules(lease_s=lease_s, tombstone_s=tombstone_s)


def test_lease_in_milliseconds_is_never_zero() -> None:
    assert LeaseRules(lease_s=0.0001, tombstone_s=1.0).lease_ms == 1
    assert RULES.lease_ms == 30_000
