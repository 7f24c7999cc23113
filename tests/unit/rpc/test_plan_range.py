"""PlanRange: which requests are rejected."""

from typing import Any

import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.rpc.plan_range import PlanRange
from tests.unit.rpc.service_support import FEED, refused, served
from tests.virtual_time import in_virtual_time

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
