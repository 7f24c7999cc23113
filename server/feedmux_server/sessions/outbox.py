"""The share of the memory for untaken messages that one session's messages use and may use."""

import logging
from typing import Final

from feedmux_server.core.limits.memory import Held, Pool
from feedmux_server.streams.wakeup import Wakeup

log = logging.getLogger(__name__)

MESSAGE_COPIES: Final = 2
"""feedmux's copy and gRPC's copy, both held until HTTP/2 has taken the message."""
_UNLIMITED = 1 << 62


class Outbox:
    """The outbox of one session, for one message at a time. End it with `close`."""

    __slots__ = ("_held", "_payload_max", "_pool", "_signal", "_tenant")

    def __init__(self, pool: Pool, tenant: str, payload_max: int, signal: Wakeup) -> None:
        """`payload_max`: bytes of events that one message holds; a larger event is sent in fragments of this size."""
        self._pool = pool
        self._tenant = tenant
        self._payload_max = payload_max
        self._signal = signal
        self._held: Held | None = None

    @property
    def unsent(self) -> bool:
        """Whether HTTP/2 has not taken the last message: the client does not read."""
        return self._held is not None

    def limits(self) -> tuple[int, int]:
        """The most bytes that the next message may hold: for several events, and for one event alone."""
        room, most = self._pool.room(self._tenant), self._payload_max
        whole = min(most, room // MESSAGE_COPIES)
        if self._pool.may_overdraw(self._tenant):
            return whole, _UNLIMITED
        return whole, whole if whole < most else max(most, room - MESSAGE_COPIES * most)

    def cost(self, wire_size: int) -> int:
        """The memory for a message of `wire_size` bytes of events; for a larger event: its fragments and the event."""
        if wire_size <= self._payload_max:
            return MESSAGE_COPIES * wire_size
        return wire_size + MESSAGE_COPIES * self._payload_max

    def fits(self, size: int) -> bool:
        return size <= self._pool.room(self._tenant) or self._pool.may_overdraw(self._tenant)

    def wait(self) -> None:
        """Have the session woken when there is more room."""
        if self._pool.note(self._tenant):
            log.warning(
                "messages that the tenant's clients do not read use too much memory; until they read, the tenant's"
                " other messages wait or are small",
                extra={"tenant": self._tenant, "unsent_bytes": self._pool.bytes},
            )
        self._pool.when_room(self._tenant, self._signal.set)

    def hold(self, size: int) -> None:
        """Note that a message of this `cost` is given to gRPC."""
        self.written()
        self._held = self._pool.hold(self._tenant, size)

    def written(self) -> None:
        """Note that HTTP/2 has taken the message."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def close(self) -> None:
        self._pool.waits_no_longer(self._tenant, self._signal.set)
        self.written()
