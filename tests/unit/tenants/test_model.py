"""The error for a caller without valid credentials says nothing about the cause."""

from feedmux_server.tenants.model import Unauthenticated


def test_every_cause_has_one_message() -> None:
    one, other = Unauthenticated("unknown key"), Unauthenticated("expired JWT")
    assert (one.status, one.message, one.metadata) == ("UNAUTHENTICATED", other.message, other.metadata)
    assert (one.cause, other.cause) == ("unknown key", "expired JWT")
    assert not any(word in one.message for word in ("unknown", "expired"))
