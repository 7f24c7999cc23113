"""ChangeFeed.Watch: an inline feed, throttled only by HTTP/2 flow control."""

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.positions.start import StartKind
from feedmux_server.rpc import convert
from feedmux_server.rpc.caller import caller
from feedmux_server.rpc.live_sessions import LiveSession
from feedmux_server.rpc.response_encoder import ResponseEncoder
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.session_lifecycle import admitted, listed, opened_message, serve
from feedmux_server.rpc.status import Context
from feedmux_server.sessions.session import Reading, Session, SessionPolicy

WINDOW_EVENTS = 100_000
WINDOW_BYTES = 4 * 1024 * 1024
"""The most events and bytes on their way to a client that does not report what it has taken."""


class Watch:
    """One instance serves all calls."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, data: bytes, context: Context) -> None:
        service = self._service
        identity = caller()
        tenant = identity.tenant
        request = convert.parse(wire.WatchRequest, data)
        heartbeat_s = convert.heartbeat_s(request)
        message_bytes_max = convert.message_bytes_max(request.message_bytes_max)
        wire_format = convert.wire_format(request.format)
        feed = await service.access.feed_of(request.feed, tenant)
        key = service.access.key_of(feed, tenant)
        start = convert.start(request.start)
        at = await service.starts(key, tenant).resolve(start)
        positions = service.positions(key, tenant)
        encoder = ResponseEncoder(positions, wire_format, message_bytes_max)
        policy = SessionPolicy(
            heartbeat_s, from_earliest=start.kind is StartKind.EARLIEST, batch_events_max=feed.batch_size
        )
        async with admitted(service, tenant, feed, key):
            reading = Reading(key, tenant, at, positions, policy, encoder.payload_max, wire_format)
            session = Session.begin(service.manager, reading)
            async with listed(service, LiveSession(session, feed, key, identity, "", "", context.peer() or "")):
                await session.opened()
                opened = opened_message(
                    service, key, positions, at, heartbeat_s, message_bytes_max, copy=session.copy_status
                )
                await context.write(encoder.opened(opened))
                session.grant(WINDOW_EVENTS, WINDOW_BYTES)
                await serve(session, encoder, context.write, regrant=True)
