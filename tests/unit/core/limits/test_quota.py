"""The error for an exceeded quota."""

from feedmux_server.core.limits.quota import exceeded
from tests.tables import over


@over(("given", "retry_after_s"), [({}, 5.0), ({"retry_after_s": None}, None)])
def test_it_names_the_quota_and_says_when_to_try_again(given: dict[str, float | None], retry_after_s: float) -> None:
    error = exceeded("sessions", 3, **given)
    assert "quota sessions is 3" in error.message
    assert error.metadata == {"quota": "sessions", "limit": "3"}
    assert (error.status, error.retry_after_s) == ("RESOURCE_EXHAUSTED", retry_after_s)
