"""When an owner renews its lease, when it must stop calling itself owner, and when it may restore lost state.

The store judges leases by Redis TIME; the owner judges its own by a monotonic clock, always from the moment
its last successful request was *sent*, so that the owner's view ends no later than the store's. Nothing here
decides a commit: only the store's epoch and nonce do. Used by `store.handle` and `store.committer`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """Rules for leases of `lease_s`; the store remembers for `tombstone_s` what was deleted."""

    lease_s: float
    tombstone_s: float

    def __post_init__(self) -> None:
        if self.lease_s <= 0:
            raise ValueError("lease_s must be above 0")
        if self.tombstone_s < 4 * self.lease_s:
            raise ValueError("tombstone_s must be at least four times lease_s")

    @property
    def lease_ms(self) -> int:
        return max(1, round(self.lease_s * 1000))

    @property
    def renew_after_s(self) -> float:
        """A third: two renewals may fail before the lease does."""
        return self.lease_s / 3

    @property
    def check_every_s(self) -> float:
        """How often to look for leases to renew; coarse, so that many renewals share a round trip."""
        return self.lease_s / 12

    def renew_due(self, confirmed_s: float, now_s: float) -> bool:
        """Whether a lease last confirmed by a request sent at `confirmed_s` is to be renewed."""
        return now_s - confirmed_s >= self.renew_after_s

    def may_restore(self, confirmed_s: float, now_s: float) -> bool:
        """Whether missing state can only mean lost state.

        An owner that was disconnected for long could have missed the whole life of a tombstone, and would bring back
        what was deleted; half of that life leaves room for the difference of two clocks.
        """
        return now_s - confirmed_s < self.tombstone_s / 2
