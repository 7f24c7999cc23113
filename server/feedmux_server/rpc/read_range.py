"""ChangeFeed.ReadRange: exactly the events of a range, from what PlanRange has retained or from MongoDB again."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace

from feedmux.v1 import change_feed_pb2 as wire
from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.copy_range import range_end, to_read_again
from feedmux_server.core.delivery.taken import BSON, Delivery
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import FeedSpec
from feedmux_server.core.feeds.feed_fingerprint import check_fingerprint
from feedmux_server.core.feeds.names import check_name
from feedmux_server.core.feeds.snapshot_stages import check_range
from feedmux_server.core.feeds.stream_key import StreamKey
from feedmux_server.core.positions.join_point import JoinPoint
from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_server.ranges.cache import PIECE_BYTES_MAX, GivenUp
from feedmux_server.ranges.reader import RangeReader
from feedmux_server.rpc import convert
from feedmux_server.rpc.caller import caller
from feedmux_server.rpc.response_encoder import ResponseEncoder
from feedmux_server.rpc.service import Service
from feedmux_server.rpc.status import Context
from feedmux_server.rpc.watch import WINDOW_BYTES, WINDOW_EVENTS
from feedmux_server.sessions.quota_gate import QuotaGate
from feedmux_server.sessions.send_gate import SendGate
from feedmux_server.streams.wakeup import Wakeup
from feedmux_server.tenants.model import Identity

CHECK_EVERY_S = 5.0
"""A read ends at most this long after its credential or its grant ends."""
HEARTBEAT_S = 10.0
"""After this time without a message, an empty message is sent, so that silence means a dead connection."""
_BESIDE_BYTES = 2 * PIECE_BYTES_MAX
"""What a call holds in addition to its message: the range's piece with the message, and that piece's source data."""


class ReadRange:
    """One instance serves all calls."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, data: bytes, context: Context) -> None:
        service = self._service
        identity = caller()
        tenant = identity.tenant
        request = convert.parse(wire.ReadRangeRequest, data)
        message_bytes_max = convert.message_bytes_max(request.message_bytes_max)
        feed = await self._feed(request, tenant)
        key = service.access.key_of(feed, tenant)
        check_fingerprint(feed, request.feed_fingerprint)
        starts = service.starts(key, tenant)
        after = await starts.position(request.after, "after")
        until = (await starts.position(request.until, "until")).place
        check_range(after.place, key, "`after`")
        check_range(until, key, "`until`")
        until = range_end(after.place, until)
        # Read again, a range may have had more documents than it had at first.
        within = until.after_documents() if after.place.copied is not None and until.is_high_water_mark else until
        if after.place.is_after(within):
            raise FeedmuxError(
                ErrorReason.MESSAGE_INVALID, "`until` is before `after`", {"field": "until"}, field="until"
            )
        encoder = ResponseEncoder(starts.encoder(), BSON, message_bytes_max)
        signal = Wakeup()
        with service.admission.keeping(feed):
            async with service.manager.abandoned.holding(tenant, key):
                quota = QuotaGate(service.manager.accounts.of(tenant), signal, holds=False)
                gate = SendGate(service.manager, tenant, encoder.payload_max, quota, signal)
                call = _Call(tenant, key, until, gate, signal, encoder, context)
                try:
                    with self._while_granted(identity, feed, key):
                        needed: int | None = call.usual_bytes
                        while needed is not None:
                            await self._room(call, needed)
                            needed = await self._pass(call, call.after or after, needed)
                finally:
                    gate.close()
        service.ranges.was_read(key, tenant, after.place, until, call.sent)

    async def _room(self, call: "_Call", size: int) -> None:
        """Wait until the call may hold `size` bytes, and hold them."""
        while not call.holds_instead(size):
            call.gate.outbox.wait()
            await call.signal.wait(call.quiet_s)
            await call.beat()

    @contextmanager
    def _while_granted(self, identity: Identity, feed: FeedSpec, key: StreamKey) -> Iterator[None]:
        """Raise FeedmuxError when the credential or the grant is gone, wherever the task waits, even for a client that
        does not read."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        refusal: FeedmuxError | None = None
        timer: asyncio.TimerHandle | None = None

        def check() -> None:
            nonlocal refusal, timer
            timer = loop.call_later(CHECK_EVERY_S, check)
            try:
                self._service.sessions.check_holds(identity, feed, key)
            except FeedmuxError as error:
                refusal = error
                timer.cancel()
                if task is not None:
                    task.cancel()

        timer = loop.call_later(CHECK_EVERY_S, check)
        try:
            yield
        except asyncio.CancelledError:
            if refusal is None or task is None or task.uncancel():
                raise
            raise refusal from None
        finally:
            if timer is not None:
                timer.cancel()

    async def _pass(self, call: "_Call", after: JoinPoint, held: int) -> int | None:
        """Send the events after `after`, with `held` bytes of room to begin with. Returns None when all are sent, else
        how much room the next pass needs: no call holds events while it waits for room."""
        outbox = call.gate.outbox
        async with aclosing(self._deliveries(call, after)) as deliveries:
            async for delivery in deliveries:
                if delivery is None:
                    await call.beat()
                    continue
                size = max(delivery.wire_size, _BESIDE_BYTES) + outbox.cost(delivery.wire_size)
                if size > held and not call.holds_instead(size):
                    return size
                await call.send(delivery)
                end = delivery.end
                del delivery
                if end.reaches(call.until):
                    return None
                held = call.usual_bytes
                if not call.holds_instead(held):
                    return held
        return None

    async def _feed(self, request: wire.ReadRangeRequest, tenant: str) -> FeedSpec:
        match request.WhichOneof("target"):
            case "feed":
                return await self._service.access.feed_of(request.feed, tenant)
            case "subscription":
                check_name("subscription", request.subscription)
                stored = await self._service.store.get(tenant, request.subscription)
                content = convert.served_content(stored)
                return await self._service.access.feed_of(content.feed, tenant)
        raise FeedmuxError(
            ErrorReason.MESSAGE_INVALID, "a range needs a subscription name or a feed", {"field": "target"}
        )

    async def _deliveries(self, call: "_Call", after: JoinPoint) -> AsyncGenerator[Delivery | None, None]:
        """Yield the retained events, and then the rest from MongoDB; None when no event has come for a while. The
        caller numbers them."""
        key, tenant, until = call.key, call.tenant, call.until
        timeline = self._service.manager.source(key.spec.scope.source).timeline
        forked_count = timeline.forked_count
        kept = self._service.ranges.read(key, tenant, after.place, until, call.payload_max)
        if kept is not None:
            # Found once: a tenant may have a thousand ranges, and each of their messages asks.
            call.pays = self._service.ranges.pays(key, tenant, after.place, until) or _pays_nothing
            try:
                for delivery in kept:
                    after = JoinPoint(delivery.end, exact=True)
                    yield delivery
                    del delivery
                return
            except GivenUp:
                # The rest comes from MongoDB, which must still have the history of the range.
                if (error := timeline.forked_since(forked_count, until)) is not None:
                    raise error from None
        call.pays = _pays_nothing
        if after.place.copied is not None:
            place, until = to_read_again(after.place, until)
            after, call.until = replace(after, place=place, native=None), until
        reader = RangeReader(self._service.manager, key, tenant, after, call.payload_max)
        try:
            reader.grant(WINDOW_EVENTS, WINDOW_BYTES)
            while not reader.has_reached(until) and not reader.passed:
                found = await reader.next(call.written_s + HEARTBEAT_S, until=until)
                count, size = (found.count, found.size) if found is not None else (0, 0)
                yield found
                del found
                if count:
                    reader.grant(count, size)
        finally:
            reader.close()


def _pays_nothing(size: int) -> bool:
    return False


@dataclass(slots=True)
class _Call:
    """One call and its progress."""

    tenant: str
    key: StreamKey
    until: ResumeToken
    gate: SendGate
    signal: Wakeup
    encoder: ResponseEncoder
    context: Context
    written_s: float = field(default_factory=monotonic_s)
    after: JoinPoint | None = None
    """The position after the last event sent."""
    sent: int = 0
    """The number of events sent."""
    pays: Callable[[int], bool] = _pays_nothing
    """Whether the plan of a retained range has paid for so many bytes."""

    @property
    def payload_max(self) -> int:
        return min(self.encoder.payload_max, PIECE_BYTES_MAX)

    @property
    def usual_bytes(self) -> int:
        """The bytes the call holds with a message, unless the message is one large event."""
        return _BESIDE_BYTES + self.gate.outbox.cost(self.payload_max)

    def holds_instead(self, size: int) -> bool:
        """Release what the call holds and hold `size` bytes instead. If there is no room, hold nothing and return
        False."""
        self.gate.outbox.written()
        if not self.gate.outbox.fits(size):
            return False
        self.gate.outbox.hold(size)
        return True

    @property
    def quiet_s(self) -> float:
        """How long from now until the next heartbeat is due."""
        return max(0.0, self.written_s + HEARTBEAT_S - monotonic_s())

    async def beat(self) -> None:
        """Write an empty message if none was written for `HEARTBEAT_S`."""
        if not self.quiet_s:
            await self.context.write(b"")
            self.written_s = monotonic_s()

    async def send(self, delivery: Delivery) -> None:
        """Write a delivery when its tenant's quotas and turn allow."""
        gate, began_s = self.gate, monotonic_s()
        paid = self.pays(delivery.size)
        while not paid and (held_s := gate.quota.wait_s(monotonic_s())) > 0:
            await self.signal.wait(min(held_s, self.quiet_s))
            await self.beat()
        gate.quota.throttled(monotonic_s() - began_s)
        if gate.turns.crowded:
            await gate.turn()
        gate.sends(delivery, paid=paid)
        for frame in self.encoder.frames(replace(delivery, first_sequence=self.sent + 1)):
            await self.context.write(frame)
        self.written_s = monotonic_s()
        self.sent += delivery.count
        self.after = JoinPoint(delivery.end, exact=True)
