"""ChangeFeed.ReadRange: exactly the events of a range, from what PlanRange has kept or from MongoDB again."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import subscriptions_pb2
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feed import FeedSpec
from feedmux_server.core.feed_fingerprint import check_fingerprint
from feedmux_server.core.names import check_name
from feedmux_server.core.resume_token import ResumeToken
from feedmux_server.core.stream_key import StreamKey
from feedmux_server.core.subscriber import BSON, Delivery, JoinPoint
from feedmux_server.fanout.allowance import Allowance
from feedmux_server.fanout.range_reader import RangeReader
from feedmux_server.fanout.ranges import GivenUp
from feedmux_server.fanout.signal import Signal
from feedmux_server.rpc import convert
from feedmux_server.rpc.frames import Framer
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context
from feedmux_server.rpc.watch import WINDOW_BYTES, WINDOW_EVENTS

CHECK_EVERY_S = 5.0
"""A long range ends with the credential or the grant that it was asked under."""
_LOOK_EVERY_S = 60.0


class ReadRange:
    """One instance serves all calls."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, data: bytes, context: Context) -> None:
        service = self._service
        identity = service.caller()
        tenant = identity.tenant
        request = convert.parse(wire.ReadRangeRequest, data)
        message_bytes_max = convert.message_bytes_max(request.message_bytes_max)
        feed = await self._feed(request, tenant)
        key = service.key_of(feed, tenant)
        check_fingerprint(feed, request.feed_fingerprint)
        starts = service.starts(key, tenant)
        after = await starts.position(request.after, "after")
        until = (await starts.position(request.until, "until")).place
        if after.place.is_after(until):
            raise FeedmuxError(
                ErrorReason.MESSAGE_INVALID, "until lies before after", {"field": "until"}, field="until"
            )
        framer = Framer(starts.encoder(), BSON, message_bytes_max)
        checked_s = time.monotonic()
        account, signal = service.hub.accounts.of(tenant), Signal()
        async with service.hub.holding(tenant, key):
            allowance = Allowance(account, signal.set, holds=False)
            try:
                async with aclosing(self._deliveries(key, tenant, after, until, framer.payload_max)) as deliveries:
                    async for delivery in deliveries:
                        began_s = time.monotonic()
                        if began_s > checked_s + CHECK_EVERY_S:
                            service.check_holds(identity, feed, key)
                            checked_s = began_s
                        while (held_s := allowance.wait_s(time.monotonic())) > 0:
                            await signal.wait(held_s)
                        allowance.held_back(time.monotonic() - began_s)
                        if service.hub.turns.crowded:
                            await service.hub.turns.wait(tenant)
                        service.hub.turns.spend(delivery.size)
                        allowance.sent(delivery, time.monotonic())
                        for frame in framer.frames(delivery):
                            await context.write(frame)
            finally:
                allowance.close()

    async def _feed(self, request: wire.ReadRangeRequest, tenant: str) -> FeedSpec:
        match request.WhichOneof("target"):
            case "feed":
                return await self._service.feed_of(request.feed, tenant)
            case "subscription":
                check_name("subscription", request.subscription)
                stored = await self._service.store.get(tenant, request.subscription)
                content = subscriptions_pb2.Subscription.FromString(stored.definition)
                return await self._service.feed_of(content.feed, tenant)
        raise FeedmuxError(
            ErrorReason.MESSAGE_INVALID, "a range needs a subscription name or a feed", {"field": "target"}
        )

    async def _deliveries(
        self, key: StreamKey, tenant: str, after: JoinPoint, until: ResumeToken, payload_max: int
    ) -> AsyncGenerator[Delivery, None]:
        kept = self._service.ranges.read(key, tenant, after.place, until, payload_max)
        sent = 0
        if kept is not None:
            try:
                for delivery in kept:
                    sent += delivery.count
                    after = JoinPoint(delivery.end, exact=True)
                    yield delivery
                return
            except GivenUp:
                pass  # the rest from MongoDB
        reader = RangeReader(self._service.hub, key, tenant, after, payload_max)
        try:
            reader.grant(WINDOW_EVENTS, WINDOW_BYTES)
            while until.is_after(reader.place) and not reader.passed:
                found = await reader.next(time.monotonic() + _LOOK_EVERY_S, until=until)
                if found is not None:
                    yield replace(found, first_sequence=sent + found.first_sequence)
                    reader.grant(found.count, found.size)
        finally:
            reader.close()
