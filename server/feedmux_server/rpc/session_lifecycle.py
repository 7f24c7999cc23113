"""The common part of Subscribe and Watch: open a session, write its outputs, and leave it whatever happens."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.core.delivery.copy_progress import CopyStatus
from feedmux_server.core.delivery.taken import Delivery
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec, route_of
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.rpc.bounds import TOKEN_BYTES_MAX
from feedmux_server.rpc.convert import cluster_time, duration, snapshot_status
from feedmux_server.rpc.live_sessions import LiveSession
from feedmux_server.rpc.response_encoder import ResponseEncoder, token_of
from feedmux_server.rpc.service import Service
from feedmux_server.sessions.session import AGED, Session
from feedmux_server.telemetry import metrics

AGE_SPREAD = (1.15, 1.5)
"""A session ends at its connection's age times a random factor in this range. So it ends after the connection, which
gRPC ends up to a tenth late, and its successor opens on a new connection; and sessions do not all end at one time."""

Write = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def admitted(service: Service, tenant: str, feed: FeedSpec, key: StreamKey) -> AsyncIterator[None]:
    """Count the feed of a session against the quotas of its tenant. Begin the session in the block, and list it
    (`listed`), without an `await` between: a change of grants ends listed sessions only.

    Raises QUOTA_EXCEEDED when the tenant may read no further feed.
    """
    await service.manager.abandoned.make_room(tenant, key)
    service.admission.check_draining()
    service.sessions.check_granted(tenant, feed, key)
    with service.admission.keeping(feed):
        feeds = service.manager.accounts.of(tenant).feeds
        feeds.open(key)
        try:
            yield
        finally:
            feeds.close(key)


@asynccontextmanager
async def listed(service: Service, live: LiveSession) -> AsyncIterator[None]:
    """List the session for the operator and for a drain while it lasts, and close it at the end."""
    number = service.sessions.enter(live)
    aging: asyncio.TimerHandle | None = None
    if service.limits.connection_age_s:
        age_s = service.limits.connection_age_s * random.uniform(*AGE_SPREAD)
        aging = asyncio.get_running_loop().call_later(age_s, live.session.drain, service.limits.drain_s, AGED)
    outcome = "CANCELLED"
    try:
        yield
        outcome = "OK"
    except FeedmuxError as error:
        outcome = error.reason.value
        raise
    except asyncio.CancelledError:
        if not live.cut_off or live.session.end_error is None or live.task is None:
            raise
        live.task.uncancel()
        outcome = live.session.end_error.reason.value
        raise live.session.end_error from None
    finally:
        if aging is not None:
            aging.cancel()
        service.manager.observer.count(metrics.SESSIONS_ENDED, 1, live.tenant, outcome)
        live.session.close()
        service.sessions.leave(number)


def opened_message(
    service: Service,
    key: StreamKey,
    positions: PositionEncoder,
    at: JoinPoint,
    heartbeat_s: float,
    message_bytes_max: int,
    *,
    epoch: int = 0,
    at_last_acked: bool = False,
    copy: CopyStatus | None = None,
) -> wire.Opened:
    limits = service.manager.limits
    return wire.Opened(
        epoch=epoch,
        position=positions.encode(at.place),
        resume_token=token_of(at.place),
        cluster_time=cluster_time(at.place.cluster_time),
        limits=wire.Limits(
            credit_events_max=limits.credit.events_max,
            credit_bytes_max=limits.credit.bytes_max,
            unacked_events_max=limits.unacked_events_max,
            message_bytes_max=message_bytes_max,
            resume_token_bytes_max=TOKEN_BYTES_MAX,
        ),
        heartbeat_interval=duration(heartbeat_s),
        at_last_acked=at_last_acked,
        routing_key=route_of(key.spec.scope),
        snapshot=snapshot_status(copy),
    )


async def serve(session: Session, encoder: ResponseEncoder, write: Write, *, regrant: bool = False) -> None:
    """Write outputs until the client closes. Raises FeedmuxError at any other end.

    `regrant` is for streams without credit: written events are granted again, because HTTP/2 has taken them.
    """
    while (output := await session.next_output()) is not None:
        for frame in encoder.frames(output):
            await write(frame)
        if isinstance(output, Delivery):
            session.written(output)
            if regrant:
                session.grant(output.count, output.size)
