"""One account of all memory that the process holds for tenants.

Rings give way: if anything else grows, their oldest chunks are evicted until the sum is within `bytes_max`. Memory that
cannot be evicted has a separate bound, a part of the sum; at that bound work waits or is rejected.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from feedmux_server.core.limits.fair_queue import FairQueue
from feedmux_server.core.limits.rings import Rings

UNACKED_SHARE: Final = 4
"""What unacknowledged events retain outside the rings may be this part of the sum."""
UNSENT_SHARE: Final = 4
"""Messages that wait for their clients."""
REQUESTS_SHARE: Final = 8
"""Requests of calls that last."""
SMALL_MESSAGE_BYTES: Final = 16 * 1024
SMALL_REQUEST_BYTES: Final = 4 * 1024
"""So much of each is part of what a session costs."""
_CHECK_EVERY_BYTES = 1024 * 1024
_CHECKS_IN_ALL = 64
"""A small bound is not passed by more than this part of it."""
_WOKEN_AT_ONCE = 16
_PIECES_OF_THE_REST = 4


class _Kind(Enum):
    """What a piece of a pool takes room from."""

    SMALL = 1
    SHARED = 2
    OVERDRAWN = 3


class Pool:
    """Bytes of one kind that stay until their holders let go, shared by tenants.

    A tenant may come to hold as much as it leaves free: one alone half of the pool, two a third each. So there is room
    for one that comes new, however many hold all they may, and nobody keeps a list of shares (dynamic thresholds:
    A. Choudhury and E. Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). One piece takes a part of what is left,
    so that large pieces leave room for smaller ones.
    """

    __slots__ = (
        "_by_tenant", "_grew", "_noted", "_overdrawn", "_shared_bytes", "_small_bytes", "_waiting", "bytes",
        "bytes_max",
    )  # fmt: skip

    def __init__(self, bytes_max: int, small_bytes: int = 0, grew: Callable[[int], None] = lambda _: None) -> None:
        """Pieces of up to `small_bytes` need no room: they are bounded by the number of their holders. `grew` gets the
        bytes that are held more than before."""
        self.bytes = 0
        self.bytes_max = bytes_max
        self._small_bytes = small_bytes
        self._shared_bytes = 0
        """Without what is small or overdraws: that takes no room from others."""
        self._by_tenant: dict[str, int] = {}
        """The shared bytes by tenant."""
        self._overdrawn: set[str] = set()
        self._waiting: FairQueue[Callable[[], None]] = FairQueue()
        self._noted: set[str] = set()
        self._grew = grew

    def room(self, tenant: str) -> int:
        """The largest piece that the tenant may hold beside what it holds."""
        left = self.bytes_max - self._shared_bytes - self._by_tenant.get(tenant, 0)
        return max(self._small_bytes, left // _PIECES_OF_THE_REST)

    def may_overdraw(self, tenant: str) -> bool:
        """Each tenant may hold one piece that its room does not allow: no event is too large to be sent at all."""
        return tenant not in self._overdrawn

    def hold(self, tenant: str, size: int) -> "Held":
        """Take a piece, to be given back with `Held.release`. The caller must check before that the tenant may."""
        kind = _Kind.SMALL
        if size > self.room(tenant):
            kind = _Kind.OVERDRAWN
            self._overdrawn.add(tenant)
        elif size > self._small_bytes:
            kind = _Kind.SHARED
            self._shared_bytes += size
            self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + size
        self.bytes += size
        self._grew(size)
        return Held(self, tenant, size, kind)

    def release(self, held: "Held") -> None:
        """Called by `held`."""
        self.bytes -= held.size
        if held.kind is _Kind.SMALL:
            return  # nobody has more room by it
        if held.kind is _Kind.OVERDRAWN:
            self._overdrawn.discard(held.tenant)
        else:
            self._shared_bytes -= held.size
            left = self._by_tenant[held.tenant] - held.size
            if left:
                self._by_tenant[held.tenant] = left
            else:
                del self._by_tenant[held.tenant]
                self._noted.discard(held.tenant)
        for _ in range(min(_WOKEN_AT_ONCE, len(self._waiting))):
            self._waiting.get()()

    def note(self, tenant: str) -> bool:
        """True once each time the tenant runs out of room."""
        if tenant in self._noted:
            return False
        self._noted.add(tenant)
        return True

    def when_room(self, tenant: str, wake: Callable[[], None]) -> None:
        """Calls `wake` once, when something was given back: tenant by tenant, in the order of their asking."""
        self._waiting.put(tenant, wake)

    def waits_no_longer(self, tenant: str, wake: Callable[[], None]) -> None:
        self._waiting.remove(tenant, wake)


class Held:
    """A piece of a pool."""

    __slots__ = ("_pool", "kind", "size", "tenant")

    def __init__(self, pool: Pool, tenant: str, size: int, kind: "_Kind") -> None:
        self._pool: Pool | None = pool
        self.tenant = tenant
        self.size = size
        self.kind = kind

    def release(self) -> None:
        """May be called again."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.release(self)


class Memory:
    """The memory of one process."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.rings = Rings()
        self.unsent = Pool(bytes_max // UNSENT_SHARE, SMALL_MESSAGE_BYTES, self.grew)
        """Messages that gRPC has and their clients have not taken."""
        self.requests = Pool(bytes_max // REQUESTS_SHARE, SMALL_REQUEST_BYTES, self.grew)
        """Requests of calls that last, and what is made of them."""
        self._limits = {"unsent": self.unsent.bytes_max, "requests": self.requests.bytes_max}
        self._others: dict[str, Callable[[], int]] = {}
        self.evicting = False
        """More must be evicted than fits into one turn of the event loop. Those who read MongoDB wait meanwhile, or the
        rings would grow faster than they are evicted."""
        self._unchecked_bytes = 0
        self._check_every_bytes = min(_CHECK_EVERY_BYTES, bytes_max // _CHECKS_IN_ALL)

    def include(self, part: str, held_bytes: Callable[[], int], bytes_max: int | None = None) -> None:
        """Counts what others hold and bound."""
        self._others[part] = held_bytes
        if bytes_max is not None:
            self._limits[part] = bytes_max

    @property
    def limits(self) -> dict[str, int]:
        """The most of each part. Rings may have what the others leave."""
        return {"rings": max(0, self.bytes_max - sum(self.beside_rings.values())), **self._limits}

    @property
    def beside_rings(self) -> dict[str, int]:
        """The memory that cannot be evicted, by part."""
        pools = {"unsent": self.unsent.bytes, "requests": self.requests.bytes}
        return pools | {part: held_bytes() for part, held_bytes in self._others.items()}

    @property
    def bytes(self) -> int:
        return self.rings.bytes + sum(self.beside_rings.values())

    def grew(self, size: int) -> None:
        """Count `size` more bytes. Now and then check the sum, and evict from rings if it is too large."""
        self._unchecked_bytes += size
        if self._unchecked_bytes >= self._check_every_bytes:
            self._unchecked_bytes = 0
            if self.evicting:
                self._evict()
            elif self.bytes > self.bytes_max:
                self.evicting = True
                self.rings.in_parts(self._evict_on)

    def _evict(self) -> bool:
        return self.rings.evict(self.bytes - self.bytes_max)

    def _evict_on(self) -> bool:
        """Evict as much as fits into one turn. Returns whether there is more."""
        self.evicting = False  # should a ring fail
        self.evicting = self._evict()
        return self.evicting
