"""When a subscription that nobody uses is deleted."""

from feedmux_server.store.model import StoredSubscription
from tests.tables import over

DAY_MS = 24 * 3600 * 1000
USED_MS = 5 * DAY_MS


@over(
    ("unused_days", "active", "expires_ms"),
    [(2.0, False, 7 * DAY_MS), (0.5, False, USED_MS + DAY_MS // 2), (0.0, False, None), (2.0, True, None)],
)
def test_it_expires_so_long_after_its_last_use_unless_it_is_open(
    unused_days: float, active: bool, expires_ms: int | None
) -> None:
    stored = StoredSubscription("s", b"", "", b"", 0, b"", 1, 0, 0, "", active, 0, 0, USED_MS)
    assert stored.expires_ms(unused_days) == expires_ms
