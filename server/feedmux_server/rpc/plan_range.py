"""ChangeFeed.PlanRange: plans how far a bulk reader reads next, in slices."""

import asyncio

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.delivery.cached_range import CachedRange
from feedmux_server.core.delivery.copy_range import range_end
from feedmux_server.core.delivery.credit import BYTES_GRANT_MAX, EVENTS_GRANT_MAX
from feedmux_server.core.errors import ErrorReason, FeedmuxError, invalid
from feedmux_server.core.feeds.feed import FeedSpec, route_of
from feedmux_server.core.feeds.feed_fingerprint import check_fingerprint, feed_fingerprint
from feedmux_server.core.feeds.names import check_name
from feedmux_server.core.feeds.snapshot_stages import check_range
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.core.positions.stored_order import order_bytes
from feedmux_server.ranges.cache import Plan, Wanted
from feedmux_server.rpc import convert
from feedmux_server.rpc.caller import caller
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context
from feedmux_server.rpc.subscribe import INSTANCE_BYTES_MAX
from feedmux_server.rpc.subscription_lease import open_alone, released_on_error
from feedmux_server.store.model import CommitRequest, CommitStatus, Lease, StoredPlace

SLICES_MAX = 1_000
SLICES_AT_ONCE = 20
"""Cutting and signing these takes up to 4 ms, where events are small."""
WAIT_MAX_S = 60.0


class PlanRange:
    """One instance serves all calls."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, data: bytes, context: Context) -> bytes:
        service = self._service
        tenant = caller().tenant
        service.admission.admit()
        request = convert.parse(wire.PlanRangeRequest, data)
        _check(request)
        feed, key, after = await self._target(request, tenant)
        source, starts = service.manager.source(key.spec.scope.source), service.starts(key, tenant)
        is_stored = not request.after  # a feed has one
        at = await (starts.position_of_subscription(after) if is_stored else starts.position(after, "after"))
        check_range(at.place, key, "`after`" if request.after else "the stored position")
        until = (await starts.position(request.until, "until")).place if request.until else None
        if until is not None:
            check_range(until, key, "`until`")
            until = range_end(at.place, until)
        latest = await source.clock.operation_time()
        wanted = Wanted(
            until,
            latest,
            request.events_max,
            request.bytes_max,
            convert.seconds(request.wait),
        )
        place = starts.encoder().encode
        slices: list[wire.RangeSlice] = []
        if at.place.copied is not None and until is not None:
            # Its two positions say what is in it, however it was planned.
            plan = Plan(CachedRange(at.place, until, ()), caught_up=True)
            slices.append(wire.RangeSlice(after=after, until=request.until))
        else:
            plan = await service.ranges.plan(key, tenant, at, wanted)
        begin = place(plan.range.after)
        slices_max = request.slices or 1
        service.admission.charge_items(max(1, min(slices_max, plan.range.count)))
        for number, each in enumerate(plan.range.slices(slices_max), 1):
            end = place(each.until)
            slices.append(wire.RangeSlice(after=begin, until=end, event_count=each.count, size_bytes=each.size))
            begin = end
            if number % SLICES_AT_ONCE == 0:
                await asyncio.sleep(0)  # deliveries do not wait for a thousand positions
        response = wire.PlanRangeResponse(
            after=after,
            end=place(plan.range.end),
            cluster_time=convert.cluster_time(plan.range.end.cluster_time),
            event_count=plan.range.count,
            size_bytes=plan.range.size,
            slices=slices,
            caught_up=plan.caught_up,
            latest=convert.cluster_time(latest),
            routing_key=route_of(key.spec.scope),
            feed_fingerprint=feed_fingerprint(feed),
        )
        return response.SerializeToString()

    async def _target(self, request: wire.PlanRangeRequest, tenant: str) -> tuple[FeedSpec, StreamKey, bytes]:
        """The feed, and where the range begins. Opens the target subscription and stores its processed position."""
        service = self._service
        if request.WhichOneof("target") == "feed":
            feed = await service.access.feed_of(request.feed, tenant)
            key = service.access.key_of(feed, tenant)
            check_fingerprint(feed, request.feed_fingerprint)
            return feed, key, request.after
        check_name("subscription", request.subscription)
        stored, lease = await open_alone(service, tenant, request.subscription, instance_id=request.instance_id)
        async with released_on_error(service, lease):
            content = convert.served_content(stored)
            feed = await service.access.feed_of(content.feed, tenant)
            key = service.access.key_of(feed, tenant)
            # Check before `processed` is stored: it may have been processed under another feed.
            check_fingerprint(feed, request.feed_fingerprint)
            if request.processed:
                processed = (await service.starts(key, tenant).position(request.processed, "processed")).place
                check_range(processed, key, "`processed`")
                await self._store(request.processed, processed, lease, stored.delivered_time)
        return feed, key, request.after or stored.position

    async def _store(self, position: bytes, place: ResumeToken, lease: Lease, delivered_time: int) -> None:
        """Store the processed position, and renew the lease. Raises FENCED."""
        # Inside a split event, the stored position does not change, but the lease is renewed all the same.
        order = order_bytes(place.after_documents() if place.copied is None and place.is_high_water_mark else place)
        is_inside = inspect_position(position).token.may_be_inside_event  # of another feed, `place` is not
        at = None if is_inside else StoredPlace(position, place.cluster_time, order)
        [outcome] = await self._service.store.leases.commit_many([CommitRequest(lease, at, delivered_time)])
        if outcome.status is not CommitStatus.OK:
            raise FeedmuxError(
                ErrorReason.FENCED, "another client opened the subscription in the meantime", {"cause": "TAKEOVER"}
            )


def _check(request: wire.PlanRangeRequest) -> None:
    """Raises MESSAGE_INVALID, CREDIT_INVALID."""
    target = request.WhichOneof("target")
    if target is None:
        raise FeedmuxError(
            ErrorReason.MESSAGE_INVALID,
            "a range needs a subscription name or a feed",
            {"field": "target"},
            field="target",
        )
    if target == "feed" and not request.after:
        raise invalid("after", "is required with a feed: get a position to begin at from ResolvePosition")
    if target == "feed" and request.processed:
        raise invalid("processed", "is for subscriptions; with a feed, the client stores the position")
    if target == "subscription" and not request.instance_id:
        raise invalid("instance_id", "is required with a subscription")
    if len(request.instance_id.encode()) > INSTANCE_BYTES_MAX:
        raise FeedmuxError(
            ErrorReason.NAME_INVALID, f"instance_id is longer than {INSTANCE_BYTES_MAX} bytes", field="instance_id"
        )
    for name, most in (("events_max", EVENTS_GRANT_MAX), ("bytes_max", BYTES_GRANT_MAX)):
        if not 1 <= getattr(request, name) <= most:
            raise invalid(name, f"must be 1 to {most}")
    if not 0 <= request.slices <= SLICES_MAX:
        raise invalid("slices", f"must be 1 to {SLICES_MAX}")
    if not 0 <= convert.seconds(request.wait) <= WAIT_MAX_S:
        raise invalid("wait", f"must be 0 to {WAIT_MAX_S:.0f} s")
