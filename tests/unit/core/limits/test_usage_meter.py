"""What a tenant pays for reading MongoDB: its part of what was read while its subscribers were there."""

from feedmux_server.core.limits.usage_meter import StreamAccount, UsageMeter


def paid(meter: UsageMeter) -> dict[str, tuple[float, float]]:
    return {tenant: (use.upstream_events, use.upstream_bytes) for tenant, use in meter.uses.items()}


def test_tenants_share_what_was_read_while_all_were_there() -> None:
    meter = UsageMeter()
    stream = StreamAccount(meter)
    stream.enter("a", 0, 0)
    stream.enter("b", 10, 100)
    stream.settle(30, 300)
    assert paid(meter) == {"a": (20.0, 200.0), "b": (10.0, 100.0)}
    stream.leave("a", 30, 300)
    stream.settle(40, 400)
    assert paid(meter) == {"a": (20.0, 200.0), "b": (20.0, 200.0)}


def test_more_subscribers_of_one_tenant_do_not_raise_its_share() -> None:
    meter = UsageMeter()
    stream = StreamAccount(meter)
    for tenant in ("a", "a", "a", "b"):
        stream.enter(tenant, 0, 0)
    stream.settle(10, 0)
    for _ in range(2):
        stream.leave("a", 10, 0)
    stream.settle(20, 0)
    assert paid(meter) == {"a": (10.0, 0.0), "b": (10.0, 0.0)}


def test_what_is_read_for_nobody_is_paid_by_nobody() -> None:
    """A stream without subscribers stays open for a while."""
    meter = UsageMeter()
    stream = StreamAccount(meter)
    stream.enter("a", 0, 0)
    stream.leave("a", 10, 0)
    stream.enter("b", 50, 0)
    stream.settle(60, 0)
    assert paid(meter) == {"a": (10.0, 0.0), "b": (10.0, 0.0)}


def test_streams_of_a_tenant_add_up() -> None:
    meter = UsageMeter()
    for _ in range(2):
        stream = StreamAccount(meter)
        stream.enter("a", 0, 0)
        stream.settle(5, 7)
        stream.settle(5, 7)
    assert paid(meter) == {"a": (10.0, 14.0)}
