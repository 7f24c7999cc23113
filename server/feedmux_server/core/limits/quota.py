"""What a tenant may use: limits on counts reject calls, limits on rates slow them down. Limits are for each replica."""

from dataclasses import dataclass
from typing import Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError

UNLIMITED: Final = 1 << 62
_RETRY_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits of one tenant, which the options of the tenants file describe (`QuotaSection` in
    `config/tenants_file.py`). The defaults are for a tenant without limits: the only one, without authentication."""

    subscriptions: int = UNLIMITED
    subscription_bytes: int = UNLIMITED
    sessions: int = UNLIMITED
    shared_streams: int = UNLIMITED
    catch_up_streams: int = UNLIMITED
    events_per_s: int = UNLIMITED
    bytes_per_s: int = UNLIMITED
    outstanding_bytes: int = UNLIMITED
    retained_bytes: int = UNLIMITED
    pipeline_bytes: int = UNLIMITED
    requests_per_s: int = UNLIMITED
    messages_per_s: int = UNLIMITED
    reads_per_s: int = UNLIMITED
    calls: int = UNLIMITED


UNLIMITED_QUOTAS: Final = Quotas()


def exceeded(quota: str, limit: int, *, retry_after_s: float | None = _RETRY_AFTER_S) -> FeedmuxError:
    """Make the error for an exceeded quota, with what a client needs to wait or to ask for more."""
    return FeedmuxError(
        ErrorReason.QUOTA_EXCEEDED,
        f"the tenant's quota {quota} is {limit}: use less, wait and try again, or ask the operator for a higher quota",
        {"quota": quota, "limit": str(limit)},
        retry_after_s=retry_after_s,
    )
