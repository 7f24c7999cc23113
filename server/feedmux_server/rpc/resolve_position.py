"""ChangeFeed.ResolvePosition: a start as a position that can be stored."""

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feed_fingerprint import feed_fingerprint
from feedmux_server.fanout.starting import resolve_start
from feedmux_server.rpc import convert
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context


class ResolvePosition:
    """One instance serves all calls."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, data: bytes, context: Context) -> bytes:
        service = self._service
        tenant = service.caller().tenant
        request = convert.parse(wire.ResolvePositionRequest, data)
        feed = service.feed_of(request.feed, tenant)
        key = service.key_of(feed, tenant)
        if request.start.WhichOneof("at") is None:
            raise FeedmuxError(ErrorReason.MESSAGE_INVALID, "start is required", {"field": "start"}, field="start")
        source = service.hub.source(key.spec.scope.source)
        place = (await resolve_start(convert.start(request.start), source, tenant, key)).place
        response = wire.ResolvePositionResponse(
            position=service.positions(key, tenant).encode(place),
            cluster_time=convert.cluster_time(place.cluster_time),
            time=convert.timestamp(place.cluster_time >> 32),
            feed_fingerprint=feed_fingerprint(feed),
        )
        return response.SerializeToString()
