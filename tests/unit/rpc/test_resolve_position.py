"""ResolvePosition: a start as a position that can be stored."""

import pytest

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.errors import ErrorReason
from feedmux_server.rpc.resolve_position import ResolvePosition
from tests.unit.rpc.service_support import FEED, refused, served
from tests.virtual_time import in_virtual_time


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (wire.ResolvePositionRequest(feed=FEED), ErrorReason.MESSAGE_INVALID),
        (wire.ResolvePositionRequest(start={"latest": {}}), ErrorReason.NAME_INVALID),
        (wire.ResolvePositionRequest(feed={"source": "absent"}, start={"latest": {}}), ErrorReason.SOURCE_NOT_FOUND),
        (wire.ResolvePositionRequest(feed=FEED, start={"time": {"seconds": 2**31}}), ErrorReason.START_IN_FUTURE),
    ],
)
@in_virtual_time
async def test_what_cannot_be_resolved(request_: wire.ResolvePositionRequest, reason: ErrorReason) -> None:
    async with served() as there:
        assert (await refused(ResolvePosition(there.service), request_)).reason is reason
