"""ChangeFeed.Subscribe: a session with credits and acks, durable or inline."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from feedmux.v1 import change_feed_pb2 as wire
from feedmux.v1 import feed_pb2
from feedmux_server.cancellation import is_cancelled
from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.ack_tracker import ENTRIES_AT_ONCE
from feedmux_server.core.delivery.credit import CreditLimits, CreditWindow
from feedmux_server.core.delivery.taken import BSON
from feedmux_server.core.errors import ErrorReason, FeedmuxError, invalid
from feedmux_server.core.feeds.feed import FeedSpec
from feedmux_server.core.feeds.names import check_name
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.limits.account import Account
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.position import inspect_position
from feedmux_server.core.positions.resume_token import Copied, ResumeToken, without_document
from feedmux_server.core.positions.start import StartKind
from feedmux_server.rpc import convert
from feedmux_server.rpc.caller import caller
from feedmux_server.rpc.group_checks import check_member, check_not_member, reported, window_of
from feedmux_server.rpc.join import joined_group
from feedmux_server.rpc.live_sessions import LiveSession
from feedmux_server.rpc.receiving import Requests, first_message
from feedmux_server.rpc.response_encoder import MemberEncoder, ResponseEncoder
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.session_lifecycle import admitted, listed, opened_message, serve
from feedmux_server.rpc.status import Context, internal_error
from feedmux_server.rpc.subscription_lease import committing, open_alone, received, released_on_error
from feedmux_server.sessions.groups import Had
from feedmux_server.sessions.member_session import MemberSession
from feedmux_server.sessions.outputs import RewoundMark, SkippedMark
from feedmux_server.sessions.session import Reading, Session, SessionPolicy
from feedmux_server.store.model import Lease, StoredSubscription
from feedmux_server.streams.resolve_start import StartResolver
from feedmux_server.telemetry.audit import AuditEvent

INSTANCE_BYTES_MAX = 120
LATER_BYTES_MAX = 1024
"""The most bytes of a Credit, Ack or Close."""
SETTLE_BYTES_MAX = 16 * 1024
"""The most bytes of a message of a member."""
_FAILURES_AT_ONCE = 250
"""The most failed events that take one turn of the event loop: 2 ms."""


@dataclass(frozen=True, slots=True)
class _Target:
    """What Open asks for, resolved."""

    feed: FeedSpec
    key: StreamKey
    at: JoinPoint
    policy: SessionPolicy
    stored: StoredSubscription | None = None
    lease: Lease | None = None
    at_last_acked: bool = False
    rewound_from: int = 0
    """Cluster time that the client had acknowledged, if the session begins before it; else 0."""
    skipped_from: ResumeToken | None = None
    """The position that the client had acknowledged, if others moved the stored position past it."""
    completed: Copied | None = None
    """The copy whose end the stored position does not show to be noticed."""


class Subscribe:
    """One instance serves all calls."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, requests: Requests, context: Context) -> None:
        service = self._service
        identity = caller()
        tenant = identity.tenant
        request = await _first(requests, service)
        heartbeat_s = convert.heartbeat_s(request)
        message_bytes_max = convert.message_bytes_max(request.message_bytes_max)
        wire_format = convert.wire_format(request.format)
        if len(request.instance_id.encode()) > INSTANCE_BYTES_MAX:
            raise FeedmuxError(
                ErrorReason.NAME_INVALID,
                f"instance_id is longer than {INSTANCE_BYTES_MAX} bytes",
                field="open.instance_id",
            )
        if request.join:
            await self._join(requests, request, context, heartbeat_s, message_bytes_max)
            return
        check_not_member(request)
        if request.HasField("credit"):
            # Rejects what the window of the session would reject, before anything is opened.
            CreditWindow(CreditLimits()).grant(request.credit.events, request.credit.bytes, zero_allowed=True)
        target = await self._target(request, tenant, context)
        feed, key, at = target.feed, target.key, target.at
        async with committing(service, target.lease, target.stored) as attach, admitted(service, tenant, feed, key):
            positions = service.positions(key, tenant)
            encoder = ResponseEncoder(positions, wire_format, message_bytes_max)
            reading = Reading(key, tenant, at, positions, target.policy, encoder.payload_max, wire_format)
            known = received(target.stored) if target.stored is not None else None
            session = Session.begin(service.manager, reading, attach, request.subscription, known)
            peer = context.peer() or ""
            live = LiveSession(session, feed, key, identity, request.subscription, request.instance_id, peer)
            async with listed(service, live):
                await session.opened()
                opened = opened_message(
                    service,
                    key,
                    positions,
                    at,
                    heartbeat_s,
                    message_bytes_max,
                    epoch=target.lease.epoch if target.lease else 0,
                    at_last_acked=target.at_last_acked,
                    copy=session.copy_status,
                )
                await context.write(encoder.opened(opened))
                if target.rewound_from:
                    session.notice(RewoundMark(at.place, target.rewound_from))
                if target.skipped_from is not None:
                    session.notice(SkippedMark(target.skipped_from, at.place))
                if target.completed is not None:
                    session.repeat_end_of_copy(target.completed)
                if target.at_last_acked:
                    session.commits.begin_at(at.place)
                if request.HasField("credit"):
                    session.grant(request.credit.events, request.credit.bytes, zero_allowed=True)
                account = service.manager.accounts.of(tenant)
                listening = _listen(requests, session, account, _applied, LATER_BYTES_MAX)
                await _serve_both_ways(session, listening, encoder, context)

    async def _join(
        self, requests: Requests, request: wire.Open, context: Context, heartbeat_s: float, message_bytes_max: int
    ) -> None:
        service, identity = self._service, caller()
        tenant, name = identity.tenant, request.subscription
        check_member(request)
        window = window_of(request.credit, service.manager.limits.credit)
        async with service.groups.lock(tenant, name):
            group = await joined_group(service, name, tenant)
            feed, key = group.definition.feed, group.definition.key
            positions = service.positions(key, tenant)
            encoder = MemberEncoder(positions, BSON, message_bytes_max)
            had = Had(request.held, request.settled, request.epoch)
            policy = SessionPolicy(heartbeat_s)
            session = group.join(policy, request.instance_id, window, encoder.payload_max, had)
        live = LiveSession(session, feed, key, identity, name, request.instance_id, context.peer() or "")
        try:
            async with admitted(service, tenant, feed, key), listed(service, live):
                await session.opened()
                at, epoch = session.subscriber.at, group.definition.epoch
                opened = opened_message(service, key, positions, at, heartbeat_s, message_bytes_max, epoch=epoch)
                opened.group.members = group.connected
                opened.group.seek_epoch = group.definition.seek_epoch
                await context.write(encoder.opened(opened))
                account = service.manager.accounts.of(tenant)
                listening = _listen(requests, session, account, _applied_to_member, SETTLE_BYTES_MAX)
                await _serve_both_ways(session, listening, encoder, context)
        finally:
            session.close()
            if group.released is not None and not is_cancelled():
                await asyncio.wait([group.released])

    async def _target(self, request: wire.Open, tenant: str, context: Context) -> _Target:
        match request.WhichOneof("target"):
            case "feed":
                return await self._inline(request, tenant)
            case "subscription":
                return await self._durable(request, tenant, context)
        raise invalid("open", "needs a subscription name or a feed")

    async def _inline(self, request: wire.Open, tenant: str) -> _Target:
        if request.HasField("last_acked"):
            raise FeedmuxError(
                ErrorReason.MESSAGE_INVALID,
                "last_acked is for durable subscriptions; use start for a feed",
                field="open.last_acked",
            )
        feed = await self._service.access.feed_of(request.feed, tenant)
        key = self._service.access.key_of(feed, tenant)
        start = convert.start(request.start)
        at = await self._service.starts(key, tenant).resolve(start)
        from_earliest = start.kind is StartKind.EARLIEST
        policy = SessionPolicy(
            convert.heartbeat_s(request), from_earliest=from_earliest, batch_events_max=feed.batch_size
        )
        return _Target(feed, key, at, policy)

    async def _durable(self, request: wire.Open, tenant: str, context: Context) -> _Target:
        check_name("subscription", request.subscription)
        if request.HasField("start"):
            raise FeedmuxError(
                ErrorReason.START_CONFLICT,
                "a durable subscription begins at its stored position; use SeekSubscription to move that position",
                field="open.start",
            )
        name, instance_id = request.subscription, request.instance_id
        try:
            stored, lease = await open_alone(
                self._service, tenant, name, instance_id=instance_id, takeover=request.takeover
            )
        except FeedmuxError as error:
            raise _lost(name, error) if request.HasField("last_acked") else error from None
        async with released_on_error(self._service, lease):
            if lease.taken_over:
                self._service.audit.did(AuditEvent.TAKEOVER, "Subscribe", context, subscription=name)
            return await self._at_stored(request, tenant, stored, lease)

    async def _at_stored(self, request: wire.Open, tenant: str, stored: StoredSubscription, lease: Lease) -> _Target:
        content = convert.served_content(stored)
        feed = await self._service.access.feed_of(content.feed, tenant)
        key = self._service.access.key_of(feed, tenant)
        starts = self._service.starts(key, tenant)
        at = await starts.stored_position(stored.position, "the stored position")
        rewound_from, at_last_acked = 0, False
        skipped_from: ResumeToken | None = None
        position = inspect_position(stored.position)
        completed = position.completed
        if request.HasField("last_acked"):
            acked, is_document = await _acked_place(
                request.last_acked, starts, of_other_feed=position.stream_key != key.short
            )
            epoch = request.last_acked.epoch
            if acked.place.is_after(at.place):
                # The client's position is newer than a store that lost its last second; an older one is never used. Of
                # a copy, a token does not say which it is, nor how far it has come.
                is_token = request.last_acked.HasField("resume_token")
                is_enough = not is_token or (not is_document and at.place.copied is None)
                at_last_acked = is_enough and epoch > stored.seek_epoch
                if at_last_acked:
                    # The client may have come out of a copy since then, and not have noticed.
                    completed = (completed or at.place.copied) if acked.place.copied is None else None
                    at = acked
                else:
                    rewound_from = acked.place.cluster_time
            elif (
                at.place.is_after(acked.place)
                and epoch < max(stored.commit_epoch, stored.seek_epoch)
                and not at.place.begins_copy  # which brings everything
            ):
                skipped_from = acked.place
        policy = SessionPolicy(
            convert.heartbeat_s(request),
            continue_on_invalidate=content.on_invalidate == feed_pb2.ON_INVALIDATE_CONTINUE,
            earliest_on_history_lost=content.on_history_lost == feed_pb2.ON_HISTORY_LOST_EARLIEST,
            snapshot_on_history_lost=content.on_history_lost == feed_pb2.ON_HISTORY_LOST_SNAPSHOT,
            batch_events_max=feed.batch_size,
        )
        return _Target(
            feed,
            key,
            at,
            policy,
            stored=stored,
            lease=lease,
            at_last_acked=at_last_acked,
            rewound_from=rewound_from,
            skipped_from=skipped_from,
            completed=completed,
        )


def _lost(name: str, error: FeedmuxError) -> FeedmuxError:
    """The error of an opening by a client that has acknowledged events of the subscription."""
    if error.reason is not ErrorReason.SUBSCRIPTION_NOT_FOUND or error.metadata:
        return error
    return FeedmuxError(
        error.reason,
        f"there is no subscription {name!r} any more, although this client has acknowledged its events: Redis has lost"
        " it (eviction, FLUSHALL, an older copy), or it was deleted more than a day ago. Create it again at the last"
        " position that this client knows",
        {"cause": "LOST"},
    )


async def _acked_place(
    last_acked: wire.LastAcked, starts: StartResolver, *, of_other_feed: bool
) -> tuple[JoinPoint, bool]:
    """And whether it is the token of a copied document. `of_other_feed`: so is the stored position, and so a token may
    be."""
    match last_acked.WhichOneof("place"):
        case "position":
            return await starts.acked_position(last_acked.position, "open.last_acked.position"), False
        case "resume_token":
            raw = convert.resume_token(last_acked.resume_token, "open.last_acked.resume_token")
            at = await starts.acked_token(raw, "open.last_acked.resume_token", of_other_feed=of_other_feed)
            return at, without_document(raw) is not raw
    raise FeedmuxError(
        ErrorReason.MESSAGE_INVALID, "last_acked needs a position or a resume token", field="open.last_acked"
    )


async def _first(requests: Requests, service: Service) -> wire.Open:
    data = await first_message(requests, service.limits.requests)
    if data is not None:
        service.admission.charge_bytes(len(data))
        request = convert.parse(wire.SubscribeRequest, data)
        if request.WhichOneof("message") == "open":
            return request.open
    raise FeedmuxError(ErrorReason.OPEN_REQUIRED, "the first message of a session must be open")


S = TypeVar("S", bound=Session)


async def _applied(session: Session, request: wire.SubscribeRequest) -> None:
    match request.WhichOneof("message"):
        case "credit":
            session.grant(request.credit.events, request.credit.bytes)
        case "ack":
            sequence = request.ack.delivery_sequence
            while (part := session.part_of_ack(sequence)) != sequence:
                session.ack(part)
                await asyncio.sleep(0)
            session.ack(sequence)
        case "close":
            session.ask_close()
        case "settle":
            raise FeedmuxError(ErrorReason.MESSAGE_INVALID, "settle is for members of a group; send an ack")
        case other:
            raise _unexpected(other)


async def _applied_to_member(session: MemberSession, request: wire.SubscribeRequest) -> None:
    match request.WhichOneof("message"):
        case "settle":
            ranges, failures = reported(request.settle, has_letters=session.has_letters)
            # Between the parts only: the next message comes in another turn of the event loop by itself.
            turns = session.gate.turns
            for number, part in enumerate(session.parts_of_settle(ranges)):
                if turns.crowded:
                    await session.gate.turn()
                elif number:
                    await asyncio.sleep(0)
                session.settle(part)
                turns.spend(0, min(sum(last - first + 1 for first, last in part), ENTRIES_AT_ONCE))
            for begin in range(0, len(failures), _FAILURES_AT_ONCE):
                if begin or ranges:
                    await asyncio.sleep(0)
                session.settle((), failures[begin : begin + _FAILURES_AT_ONCE])
        case "close":
            session.gives_back = True
            session.ask_close()
        case "credit" | "ack" as other:
            raise FeedmuxError(
                ErrorReason.MESSAGE_INVALID,
                f"{other} is not for members of a group: a settled event makes room by itself; send settle",
            )
        case other:
            raise _unexpected(other)


def _unexpected(kind: str | None) -> FeedmuxError:
    if kind == "open":
        return FeedmuxError(ErrorReason.OPEN_REQUIRED, "open may be sent only once, as the first message")
    return FeedmuxError(ErrorReason.MESSAGE_INVALID, "the message is empty or of an unknown kind")


async def _serve_both_ways(
    session: Session, listening: Coroutine[Any, Any, None], encoder: ResponseEncoder, context: Context
) -> None:
    """Serve the session while `listening` applies the client's messages to it."""
    client = asyncio.create_task(listening, name="subscribe-requests")
    try:
        await serve(session, encoder, context.write)
    finally:
        client.cancel()


async def _listen(
    requests: Requests,
    session: S,
    account: Account,
    apply: Callable[[S, wire.SubscribeRequest], Awaitable[None]],
    bytes_max: int,
) -> None:
    """Apply the client's messages. An error in a message ends the session."""
    try:
        async for data in requests:
            if len(data) > bytes_max:
                raise FeedmuxError(
                    ErrorReason.MESSAGE_INVALID, f"a message after open is larger than {bytes_max} bytes"
                )
            wait_s = account.rates.message(monotonic_s(), 1 + len(data) // LATER_BYTES_MAX)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await apply(session, convert.parse(wire.SubscribeRequest, data))
        await session.half_closed()
    except FeedmuxError as error:
        session.fail(error)
    except Exception:  # noqa: BLE001 the last line: no text of ours leaves the process
        session.fail(internal_error("Subscribe"))
