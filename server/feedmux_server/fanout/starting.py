"""Turns a start into the place where a subscriber joins: asks the source for its clock or its oldest entry."""

import time
from typing import Literal

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.position import Position, decode_position, scope_fingerprint
from feedmux_server.core.resume_token import ResumeToken, UnknownTokenLayout
from feedmux_server.core.start import Start, StartKind
from feedmux_server.core.stream_key import StreamKey
from feedmux_server.core.subscriber import JoinPoint
from feedmux_server.source.mongo import Source


def fingerprint_of(source: Source, tenant: str, key: StreamKey) -> bytes:
    return scope_fingerprint(tenant, source.source_id, key.spec.scope.namespace)


def join_point(position: Position, key: StreamKey) -> JoinPoint:
    """Where a stored place is on this feed: resumable by its token if it came from this very key."""
    return JoinPoint(position.token, exact=position.stream_key == key.short)


async def resolve_start(start: Start, source: Source, tenant: str, key: StreamKey) -> JoinPoint:
    """Raises FeedmuxError: a foreign or damaged position, a start in the future, a source that is away."""
    match start.kind:
        case StartKind.LATEST:
            return JoinPoint(ResumeToken.high_water_mark(await source.operation_time() + 1))
        case StartKind.EARLIEST:
            return JoinPoint(ResumeToken.high_water_mark(await source.oldest_time()))
        case StartKind.POSITION:
            return join_point(decode_position(start.data, fingerprint_of(source, tenant, key)), key)
        case StartKind.OPERATION_TIME | StartKind.TIME:
            await _refuse_future(start.time, source)
            return JoinPoint(ResumeToken.high_water_mark(start.time))
        case StartKind.RESUME_AFTER | StartKind.START_AFTER:
            return _native(start, key)


def _native(start: Start, key: StreamKey) -> JoinPoint:
    name: Literal["resume_after", "start_after"] = (
        "resume_after" if start.kind is StartKind.RESUME_AFTER else "start_after"
    )
    token = client_token(start.data, f"start.{name}")
    if not key.policy:
        return JoinPoint(token, native=name)
    # Whether MongoDB finds a token says whether there was that change of that document, which the policy may withhold.
    # So the token serves as a place only, found by its cluster time.
    if token.from_invalidate and name == "resume_after":
        raise FeedmuxError(
            ErrorReason.START_AFTER_REQUIRED, "the token is of an invalidate event; use start_after", field="start"
        )
    return JoinPoint(token)


def client_token(raw: bytes, field: str) -> ResumeToken:
    """A resume token that a client gave. Raises POSITION_INVALID for one that cannot be read."""
    try:
        return ResumeToken.decode(raw)
    except UnknownTokenLayout:
        raise FeedmuxError(
            ErrorReason.POSITION_INVALID, f"{field} is not a resume token that this server can read", field=field
        ) from None


async def _refuse_future(cluster_time: int, source: Source) -> None:
    now = await source.operation_time()
    # An idle replica set writes a no-op only every 10 s, so its clock alone would refuse the present second.
    latest_s = max(now >> 32, int(time.time()))
    if cluster_time >> 32 > latest_s:
        raise FeedmuxError(
            ErrorReason.START_IN_FUTURE,
            f"the start lies {(cluster_time >> 32) - latest_s} s in the future of the source's clock",
            field="start",
        )
