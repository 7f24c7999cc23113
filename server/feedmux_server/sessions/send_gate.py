"""Whether one session may send now, or what it waits for: its tenant's quotas, its turn, a rendering, or room.

A session asks the gate to take (`take`). ReadRange, which has no subscriber, uses the parts.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.key_runs import Runs
from feedmux_server.core.delivery.subscriber import Subscriber
from feedmux_server.core.delivery.taken import Delivery, Ended, NeedsRender, NeedsRoom
from feedmux_server.sessions.outbox import Outbox
from feedmux_server.sessions.quota_gate import QuotaGate
from feedmux_server.sessions.rendering_wait import RenderingWait
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.wakeup import Wakeup

_UNTIL_WOKEN_S: Final = 60.0


class Takes(Protocol):
    """Where a session takes its events: the `FeedStreams` of its feed, or the `GroupReader` of its group."""

    def take(self, subscriber: Subscriber) -> Delivery | NeedsRender | NeedsRoom | Ended | None: ...


class NeedsTurn:
    """There are events to take, but the session has to wait for its turn at the event loop (`SendGate.turn`)."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be sent before the session is woken, or this time is over."""

    most_s: float = float("inf")
    throttled: bool = False
    """Because of the tenant's quotas or of memory, not because there is nothing to send."""


_NEEDS_TURN: Final = NeedsTurn()
_UNTIL_WOKEN: Final = Wait()


class SendGate:
    """The gate of one session. End it with `close`."""

    __slots__ = ("_rendering", "_tenant", "outbox", "quota", "turns")

    def __init__(self, manager: StreamManager, tenant: str, payload_max: int, quota: QuotaGate, signal: Wakeup) -> None:
        """`payload_max` is that of `Outbox`. `signal` wakes the session when what it waits for has come."""
        self.quota = quota
        self.outbox = Outbox(manager.memory.unsent, tenant, payload_max, signal)
        self._rendering = RenderingWait(manager.renderers, signal)
        self.turns = manager.turns
        self._tenant = tenant

    def take(self, streams: Takes, subscriber: Subscriber, *, has_turn: bool) -> Delivery | Ended | NeedsTurn | Wait:
        """Take what may be sent now. `has_turn`: the session has waited for its turn, and sends one delivery in it."""
        if subscriber.has_next:
            held_s = self.quota.wait_s(monotonic_s())
            if held_s > 0:
                return Wait(held_s, throttled=True)
            if self.turns.crowded and not has_turn:
                return _NEEDS_TURN
        subscriber.payload_max, subscriber.event_max = self.outbox.limits()
        taken = streams.take(subscriber)
        if isinstance(taken, NeedsRoom):
            self.outbox.wait()
            return Wait(_UNTIL_WOKEN_S, throttled=True)
        if isinstance(taken, NeedsRender):
            error = taken.chunk.render_error(subscriber.format)
            if error is None:
                self._rendering.request(taken, subscriber)
                return _UNTIL_WOKEN
            taken = Ended(error)
        if taken is None:
            return _UNTIL_WOKEN
        self._rendering.withdraw()
        if isinstance(taken, Delivery):
            self.outbox.hold(self.outbox.cost(taken.wire_size))
            self.sends(taken)
        return taken

    def sends(self, delivery: Delivery, *, paid: bool = False) -> None:
        """Note that a delivery is sent now; its room in the outbox is held separately. `paid` is that of `Account`."""
        if isinstance(delivery, Runs):
            self.turns.spend(delivery.size, delivery.count)
        else:
            self.turns.spend(delivery.size, chunks=len(delivery.parts))
        self.quota.sent(delivery, monotonic_s(), paid=paid)

    async def turn(self) -> None:
        """Wait for the session's turn."""
        await self.turns.wait(self._tenant)

    def sends_no_more(self) -> None:
        """Give up the rendering that the session waits for."""
        self._rendering.withdraw()

    def close(self) -> None:
        self._rendering.withdraw()
        self.quota.close()
        self.outbox.close()
