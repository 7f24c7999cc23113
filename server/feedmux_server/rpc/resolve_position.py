"""ChangeFeed.ResolvePosition: turns a start into a position that can be stored."""

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.delivery.copy_progress import status_at
from feedmux_server.core.errors import invalid
from feedmux_server.core.feeds.feed_fingerprint import feed_fingerprint
from feedmux_server.rpc import convert
from feedmux_server.rpc.caller import caller
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context


class ResolvePosition:
    """One instance serves all calls."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, data: bytes, context: Context) -> bytes:
        service = self._service
        tenant = caller().tenant
        request = convert.parse(wire.ResolvePositionRequest, data)
        feed = await service.access.feed_of(request.feed, tenant)
        key = service.access.key_of(feed, tenant)
        if request.start.WhichOneof("at") is None:
            raise invalid("start", "is required")
        starts = service.starts(key, tenant)
        place = (await starts.resolve(convert.start(request.start))).place
        response = wire.ResolvePositionResponse(
            position=starts.encoder().encode(place),
            cluster_time=convert.cluster_time(place.cluster_time),
            time=convert.timestamp(place.cluster_time >> 32),
            feed_fingerprint=feed_fingerprint(feed),
            snapshot=convert.snapshot_status(status_at(place, feed.scope.namespace)),
        )
        return response.SerializeToString()
