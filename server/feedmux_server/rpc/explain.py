"""ChangeFeed.Explain: reports what opening a feed would do, without opening it."""

import asyncio
from collections import defaultdict

import bson

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.delivery.wide_plan import view_of
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, change_stream_options
from feedmux_server.core.feeds.stream_key import StreamKey, user_stages
from feedmux_server.core.grants.report import withheld
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.rpc import convert
from feedmux_server.rpc.caller import caller
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context
from feedmux_server.source.deployment import Source
from feedmux_server.streams.explain import (
    collection_images,
    documents_estimated,
    headroom_s,
    is_missing,
    try_to_open,
)

AT_A_TIME = 4
"""The most calls of one tenant at a time, because each sends MongoDB several requests. Further calls wait."""
_NO_ANSWER = frozenset({"UNAVAILABLE", "INTERNAL"})


class Explain:
    """One instance serves all calls."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_A_TIME))

    async def __call__(self, data: bytes, context: Context) -> bytes:
        tenant = caller().tenant
        request = convert.parse(wire.ExplainRequest, data)
        response = wire.ExplainResponse()
        try:
            async with self._turns[tenant]:
                await self._fill(response, request, tenant)
        except FeedmuxError as error:
            if error.status in _NO_ANSWER:
                raise
            response.refusal.CopyFrom(
                wire.ExplainResponse.Refusal(status=error.status, reason=error.reason.value, message=error.message)
            )
        return response.SerializeToString()

    async def _fill(self, response: wire.ExplainResponse, request: wire.ExplainRequest, tenant: str) -> None:
        """Fill in the response up to the first rejection."""
        service = self._service
        feed = await service.access.feed_of(request.feed, tenant)
        key = service.access.key_of(feed, tenant)
        await self._describe(response, feed, key, tenant)
        source = service.manager.source(key.spec.scope.source)
        grants = service.access.grants_of(tenant)
        response.scope_missing = await is_missing(source, grants, feed.scope, service.admission.charge_list)
        hidden = service.access.hidden_database(feed.scope)
        for each in await collection_images(source, grants, feed, service.admission.charge_list):
            if each.database == hidden:
                continue
            response.images.append(
                wire.ExplainResponse.CollectionImages(
                    database=each.database, collection=each.collection, enabled=each.enabled, for_grants=each.for_grants
                )
            )
        at: JoinPoint = await service.starts(key, tenant).resolve(convert.start(request.start))
        left_s = await headroom_s(source, at)
        if left_s is not None and left_s < 0:
            raise FeedmuxError(
                ErrorReason.HISTORY_LOST, f"the start is {-left_s} s before the oldest entry of the oplog"
            )
        if left_s is not None:
            response.oplog_headroom.CopyFrom(convert.duration(left_s))
        response.documents_estimated = await documents_estimated(source, key, at, service.admission.charge_list)
        await self._try(source, key, at, tenant)
        service.admission.admit()

    async def _try(self, source: Source, key: StreamKey, at: JoinPoint, tenant: str) -> None:
        """Try to open the feed. Its cursor counts as a stream of the tenant while it is open."""
        manager = self._service.manager
        try:
            async with manager.abandoned.holding(tenant, object()):
                await try_to_open(source, key, at, self._service.admission.charge_list)
        except FeedmuxError as error:
            # There is no room for another cursor, but a subscriber would need none, and MongoDB has accepted this feed.
            if (
                error.reason is ErrorReason.QUOTA_EXCEEDED
                and key in manager.accounts.of(tenant).feeds
                and manager.is_read(key)
            ):
                return
            raise

    async def _describe(self, response: wire.ExplainResponse, feed: FeedSpec, key: StreamKey, tenant: str) -> None:
        stages = bson.encode({"pipeline": [{"$changeStream": change_stream_options(key.spec)}, *user_stages(key)]})
        charge = self._service.admission.charge_cpu(tenant)
        response.pipeline = await self._service.checks.render(stages, tenant, charge)
        response.stream_key = str(key)
        response.stream_open = self._service.manager.is_read(key)
        response.may_be_view = self._service.manager.limits.wide.enabled and view_of(key) is not None
        for what, why in withheld(self._service.access.grants_of(tenant), feed, self._service.access.policies):
            response.withheld.append(wire.ExplainResponse.Withheld(what=what, why=why))
