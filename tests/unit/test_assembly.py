"""The configuration as the bounds of a server: every limit has its place."""

from typing import Any

from feedmux_server.assembly import manager_limits
from feedmux_server.config.sections import LimitsSection, WideSection
from tests.tables import over

MIB = 1 << 20


@over(
    ("option", "value", "found"),
    [
        ("ring_events", 1_234, lambda limits: limits.streams.ring.events_max),
        ("ring_bytes", 5 * MIB, lambda limits: limits.streams.ring.bytes_max),
        ("join_distance_s", 7, lambda limits: limits.streams.join_distance_s),
        ("catch_up_streams", 7, lambda limits: limits.catch_up_max),
        ("batch_events", 7, lambda limits: limits.read.batch_events),
        ("max_await_ms", 77, lambda limits: limits.read.max_await_ms),
        ("event_time_s", 7.0, lambda limits: limits.read.event_time_s),
        ("snapshot_step_s", 7.0, lambda limits: limits.read.snapshot_step_s),
        ("coalesce_ms", 7.0, lambda limits: limits.pump.coalesce_s * 1000),
        ("unused_stream_s", 7.0, lambda limits: limits.pump.rest.unused_stream_s),
        ("idle_close_s", 7.0, lambda limits: limits.pump.rest.idle_close_s),
        ("credit_events", 7, lambda limits: limits.credit.events_max),
        ("credit_bytes", 7, lambda limits: limits.credit.bytes_max),
        ("unacked_events", 7, lambda limits: limits.unacked_events_max),
        ("memory_bytes", 100 * MIB, lambda limits: limits.memory_bytes_max),
        ("history_at_risk_s", (7.0,), lambda limits: limits.history_at_risk_s),
    ],
)
def test_an_option_reaches_what_it_bounds(option: str, value: Any, found: Any) -> None:
    given: dict[str, Any] = {option: value}
    assert found(manager_limits(LimitsSection(**given), WideSection())) == value


@over(("ring_bytes", "read_ahead"), [(64 * MIB, 4 * MIB), (6 * MIB, 3 * MIB)])
def test_a_small_ring_is_not_read_ahead_to_its_end(ring_bytes: int, read_ahead: int) -> None:
    """Otherwise the fastest subscriber pushes others out."""
    limits = manager_limits(LimitsSection(ring_bytes=ring_bytes), WideSection())
    assert limits.streams.read_ahead_bytes == read_ahead
