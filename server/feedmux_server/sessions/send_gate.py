"""What one session may send now: its tenant's quotas, its turn at the event loop, the room for its message."""

from collections.abc import Callable

from feedmux_server.clock import monotonic_s
from feedmux_server.core.delivery.subscriber import Delivery
from feedmux_server.sessions.outbox import Outbox
from feedmux_server.sessions.quota_gate import QuotaGate
from feedmux_server.streams.manager import StreamManager


class SendGate:
    """The gate of one session. End it with `close`."""

    __slots__ = ("_tenant", "outbox", "quota", "turns")

    def __init__(
        self, manager: StreamManager, tenant: str, payload_max: int, wake: Callable[[], None], *, holds: bool
    ) -> None:
        """`payload_max`, `wake` and `holds` are those of `Outbox` and `QuotaGate`."""
        self.quota = QuotaGate(manager.accounts.of(tenant), wake, holds=holds)
        self.outbox = Outbox(manager.memory.unsent, tenant, payload_max, wake)
        self.turns = manager.turns
        self._tenant = tenant

    async def turn(self) -> None:
        """Wait for the session's turn."""
        await self.turns.wait(self._tenant)

    def sends(self, delivery: Delivery) -> None:
        """Note that a delivery is sent now; its room in the outbox is held separately."""
        self.turns.spend(delivery.size)
        self.quota.sent(delivery, monotonic_s())

    def close(self) -> None:
        self.quota.close()
        self.outbox.close()
