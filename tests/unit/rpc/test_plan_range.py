"""PlanRange: which requests are rejected, and what an answer costs."""

from collections import Counter
from typing import Any

import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.limits.rates import Rates
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.rpc.auth import ANONYMOUS
from feedmux_server.rpc.plan_range import SLICES_AT_ONCE, PlanRange
from tests.unit.rpc.service_support import FEED, call, refused, served
from tests.virtual_time import in_virtual_time, sim_loop

GOOD: dict[str, Any] = {"feed": FEED, "after": b"p", "events_max": 10, "bytes_max": 1 << 20}
DURABLE: dict[str, Any] = {"subscription": "s", "instance_id": "i", "events_max": 10, "bytes_max": 1 << 20}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"events_max": 1, "bytes_max": 1}, "target"),
        (GOOD | {"after": b""}, "after"),
        (GOOD | {"processed": b"p"}, "processed"),
        (DURABLE | {"instance_id": ""}, "instance_id"),
        (DURABLE | {"instance_id": "i" * 200}, "instance_id"),
        (GOOD | {"events_max": 0}, "events_max"),
        (GOOD | {"bytes_max": 0}, "bytes_max"),
        (GOOD | {"slices": 1001}, "slices"),
        (GOOD | {"wait": {"seconds": 61}}, "wait"),
        (GOOD | {"wait": {"seconds": -1}}, "wait"),
    ],
)
@in_virtual_time
async def test_requests_that_are_rejected(fields: dict[str, Any], field: str) -> None:
    async with served() as there:
        error = await refused(PlanRange(there.service), wire.PlanRangeRequest(**fields))
        assert (error.status, error.field) == ("INVALID_ARGUMENT", field)


@pytest.mark.parametrize(("events", "slices", "requests"), [(0, 1000, 0), (1, 0, 0), (60, 1, 0), (60, 1000, 59 / 50)])
@in_virtual_time
async def test_the_slices_of_an_answer_count_as_requests(
    monkeypatch: pytest.MonkeyPatch, events: int, slices: int, requests: float
) -> None:
    charged: list[float] = []
    monkeypatch.setattr(Rates, "charge", lambda _, requests, now_s: charged.append(requests))
    async with served() as there:
        after = await there.position()
        for _ in range(events):
            there.mongo.insert("db", "a", 0)
        charged.clear()
        request = wire.PlanRangeRequest(feed=FEED, after=after, events_max=60, bytes_max=1 << 20, slices=slices)
        plan = wire.PlanRangeResponse.FromString(await call(PlanRange(there.service), request))
        assert len(plan.slices) == min(events, slices or 1)
        assert sum(charged) == pytest.approx(requests)


@in_virtual_time
async def test_what_sessions_have_delivered_is_still_known_after_a_range() -> None:
    """A restore of MongoDB that loses it would otherwise not be noticed."""
    async with served() as there:
        position, store = (await there.create("s")).position, there.service.store
        _, lease = await store.leases.open(ANONYMOUS.tenant, "s", instance_id="i")
        await store.leases.release(lease, 7)
        await call(PlanRange(there.service), wire.PlanRangeRequest(**DURABLE, processed=position))
        assert (await store.get(ANONYMOUS.tenant, "s")).delivered_time == 7


@in_virtual_time
async def test_no_more_than_some_slices_of_an_answer_are_signed_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    signed: Counter[int] = Counter()
    by_encoder = PositionEncoder.encode

    def encode(encoder: PositionEncoder, place: ResumeToken) -> bytes:
        signed[sim_loop().steps] += 1
        return by_encoder(encoder, place)

    async with served() as there:
        after = await there.position()
        there.mongo.transaction("db", "a", 1_000, 10)
        monkeypatch.setattr(PositionEncoder, "encode", encode)
        request = wire.PlanRangeRequest(feed=FEED, after=after, events_max=1_000, bytes_max=1 << 20, slices=1_000)
        plan = wire.PlanRangeResponse.FromString(await call(PlanRange(there.service), request))
        assert len(plan.slices) == 1_000
    # In the first turn also the begin of the plan.
    assert max(signed.values()) == SLICES_AT_ONCE + 1
