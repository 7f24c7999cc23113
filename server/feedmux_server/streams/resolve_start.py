"""Turns the starts that clients and Redis give into the points where a subscriber joins.

Only this module decides which starts are accepted: positions are authenticated, clients' tokens are marked as such, and
a start that MongoDB has not reached is rejected, whatever its kind and whichever call brings it.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from feedmux_server.clock import wall_s
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.computed_keys import keys_may_differ
from feedmux_server.core.feeds.snapshot_stages import check_feed
from feedmux_server.core.feeds.stream_key import SPLIT, StreamKey, user_stages
from feedmux_server.core.positions.ahead import Ahead
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.position import (
    Position,
    PositionEncoder,
    decode_position,
    inspect_position,
    scope_fingerprint,
)
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.core.positions.resume_token import (
    Given,
    ResumeToken,
    UnknownTokenLayout,
    beginning_of_copy,
    generation_before,
    without_document,
)
from feedmux_server.core.positions.start import Start, StartKind
from feedmux_server.source.deployment import Source
from feedmux_server.source.namespaces import Charge, check_copy


@dataclass(frozen=True, slots=True)
class StartResolver:
    """The starts of one feed of one tenant."""

    source: Source
    key: StreamKey
    tenant: str
    keys: PositionKeys
    charge: Charge

    def encoder(self) -> PositionEncoder:
        """The encoder of this feed's positions. Raises SOURCE_UNAVAILABLE while the source has not been reached."""
        return PositionEncoder(self.keys, self._fingerprint, self.key.short)

    async def resolve(self, start: Start, stored: bytes = b"") -> JoinPoint:
        """The join point of a start; `stored` is the position that it replaces. Raises FeedmuxError for a foreign or
        damaged position, a start in the future, or an unavailable source."""
        match start.kind:
            case StartKind.LATEST:
                return JoinPoint(ResumeToken.high_water_mark(await self.source.clock.operation_time() + 1))
            case StartKind.EARLIEST:
                return JoinPoint(ResumeToken.high_water_mark(await self.source.oplog.oldest_time()))
            case StartKind.SNAPSHOT:
                await check_copy(self.source, self.key, self.charge)
                begin = beginning_of_copy(await self.source.clock.operation_time(), wall_s())
                return JoinPoint(begin.with_generation_after(_generation_before(stored)))
            case StartKind.POSITION:
                at = await self.position(start.data, "start")
                if stored and at.place.begins_copy:  # clients send the beginning of a copy as a position
                    at = replace(at, place=at.place.with_generation_after(_generation_before(stored)))
                return at
            case StartKind.OPERATION_TIME | StartKind.TIME:
                await self._check_reached(start.time, "start")
                return JoinPoint(ResumeToken.high_water_mark(self.source.timeline.start_of(start.time)))
            case StartKind.RESUME_AFTER | StartKind.START_AFTER:
                return await self._native(start)

    async def position(self, data: bytes, field: str) -> JoinPoint:
        """The join point of a position on this feed. Raises as `resolve` does, and TIMELINE_FORKED for a position of a
        history that MongoDB no longer has."""
        return self._not_lost(await self.acked_position(data, field))

    async def position_of_subscription(self, data: bytes) -> JoinPoint:
        """As `position`, for the stored position."""
        return self._not_lost(await self.stored_position(data, "the stored position"))

    async def position_of_group(self, data: bytes) -> tuple[JoinPoint, Ahead | None]:
        """As `position`, for the stored position of a group, with what is settled ahead of it. After a change of the
        pipeline, other events are in the feed: those that were settled cannot be told from new ones. Nor can they where
        events have other keys now."""
        at = await self.position_of_subscription(data)
        position = inspect_position(data)
        is_known = position.stream_key == self.key.short and not keys_may_differ(self.key)
        ahead = position.ahead if is_known else None
        if ahead is not None and (error := self.source.timeline.lost(ahead.high)) is not None:
            raise error
        return at, ahead

    async def stored_position(self, data: bytes, field: str) -> JoinPoint:
        """As `position`, for a subscription, which has a policy for a history that MongoDB no longer has. No stored
        position is inside a split event."""
        return await self._join_point(data, field, ends_event=True)

    async def acked_position(self, data: bytes, field: str) -> JoinPoint:
        """As `stored_position`, for one that a client has."""
        return await self._join_point(data, field, ends_event=False)

    async def _join_point(self, data: bytes, field: str, *, ends_event: bool) -> JoinPoint:
        at = join_point(decode_position(data, self._fingerprint, self.keys), self.key, ends_event=ends_event)
        if at.place.copied is not None:
            check_feed(self.key)  # the grants or the pipeline may have changed since the copy began
        await self._check_reached(at.place.cluster_time, field)
        return at

    def _not_lost(self, at: JoinPoint) -> JoinPoint:
        if (error := self.source.timeline.lost(at.place)) is not None:
            raise error
        return at

    async def acked_token(self, raw: bytes, field: str, *, of_other_feed: bool = False) -> JoinPoint:
        """The join point of an event's token, up to which a client says it has processed. Raises as `resolve` does.

        Nothing proves that the token is of this feed, and other clients may join a stream opened there. So the token is
        used only as a position in time, by its cluster time, which MongoDB cannot reject. The `_id` of a copied
        document is at the document's high-water mark. `of_other_feed`: as for `join_point`.
        """
        token = _client_token(without_document(raw), field)
        await self._check_reached(token.cluster_time, field)
        if of_other_feed:
            token = _in_other_feed(token, self.key)
        return JoinPoint(token.given_as(Given.AS_TIME))

    async def _native(self, start: Start) -> JoinPoint:
        name: Literal["resume_after", "start_after"] = (
            "resume_after" if start.kind is StartKind.RESUME_AFTER else "start_after"
        )
        if without_document(start.data) is not start.data:
            raise FeedmuxError(
                ErrorReason.POSITION_INVALID,
                f"start.{name} is the `_id` of a copied document, which does not say how far the copy is; start at a"
                " position of the copy (the position of its batch)",
                field=f"start.{name}",
            )
        token = _client_token(start.data, f"start.{name}")
        await self._check_reached(token.cluster_time, "start")
        if token.is_high_water_mark:
            return JoinPoint(token.given_as(Given.AS_TIME))  # MongoDB begins any feed at a time
        if not self.key.policy:
            return JoinPoint(token, native=name)
        # If MongoDB finds a token, the document had that change, which the policy may withhold. So the token is used
        # only as a position in time.
        if token.from_invalidate and name == "resume_after":
            raise FeedmuxError(
                ErrorReason.START_AFTER_REQUIRED, "the token is of an invalidate event; use start_after", field="start"
            )
        return JoinPoint(_in_other_feed(token, self.key).given_as(Given.AS_TIME))

    async def _check_reached(self, cluster_time: int, field: str) -> None:
        """Raises START_IN_FUTURE. Asks MongoDB only about a time later than any seen from it so far."""
        if cluster_time <= self.source.clock.known_time + 1:
            return
        latest = await self.source.clock.latest_time()
        if cluster_time > latest:
            raise FeedmuxError(
                ErrorReason.START_IN_FUTURE,
                f"{field} is in the future: {_utc(cluster_time)}, and the source's clock is at {_utc(latest)}",
                field=field,
            )

    @property
    def _fingerprint(self) -> bytes:
        return scope_fingerprint(self.tenant, self.source.source_id, self.key.spec.scope.namespace)


def _generation_before(stored: bytes) -> int:
    """At least the generation of each copy that whoever has come to a stored position has read."""
    try:
        position = inspect_position(stored)
    except FeedmuxError:
        return 0  # a seek is the way out of a position that cannot be read, and a new subscription has none
    return max(generation_before(position.token), position.completed.generation if position.completed else 0)


def _utc(cluster_time: int) -> str:
    return f"{datetime.fromtimestamp(cluster_time >> 32, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _in_other_feed(token: ResumeToken, key: StreamKey, *, ends_event: bool = False) -> ResumeToken:
    """A position in this feed, which may split its event in another way than the feed that it came from.

    After a fragment that may not be the last one, the event comes again from its start. Else all of it is passed.
    """
    if token.may_be_inside_event:
        return token.after_event() if ends_event else token.event_start()
    return token.after_event() if any(SPLIT in stage for stage in user_stages(key)) else token


def join_point(position: Position, key: StreamKey, *, ends_event: bool = False) -> JoinPoint:
    """The join point of a position on this feed: resumable by its token only if it came from the same key.

    MongoDB now checks a client's token that it has not checked yet, as it would have when the client first sent it.
    `ends_event`: the position is not between two fragments of an event.
    """
    token = position.token
    if position.stream_key != key.short:
        token = _in_other_feed(token, key, ends_event=ends_event)
    if token.is_high_water_mark and token.given is Given.BY_MONGODB:
        return JoinPoint(token, exact=position.stream_key == key.short)
    if position.stream_key != key.short and position.token.given is Given.BY_MONGODB:
        # Before an event, there is no token that MongoDB could check.
        return JoinPoint(token.given_as(Given.AS_TIME), of_mongodb=not position.token.may_be_inside_event or ends_event)
    if (
        position.stream_key != key.short
        or token.given is Given.AS_TIME
        or (token.given is Given.BY_CLIENT and key.policy)
    ):
        return JoinPoint(token.given_as(Given.AS_TIME))
    if token.given is Given.BY_CLIENT:
        return JoinPoint(token, native="start_after")
    return JoinPoint(token, exact=True, ends_event=ends_event)


def _client_token(raw: bytes, field: str) -> ResumeToken:
    """Parse a resume token from a client. Raises POSITION_INVALID if the token is not of MongoDB's form."""
    try:
        return ResumeToken.from_client(raw)
    except UnknownTokenLayout:
        raise FeedmuxError(
            ErrorReason.POSITION_INVALID, f"{field} is not a resume token that this server can read", field=field
        ) from None
