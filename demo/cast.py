"""The subscribers of the demo, and when each is started or killed."""

from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGUSR1

from demo.subscriber import DIGEST_BYTES
from demo.world import Child, World


@dataclass(frozen=True, slots=True)
class Role:
    """A subscriber and what happens to it; times are fractions of the demo's length."""

    name: str
    part: str
    slow: bool = False
    ack_s: float = 0.0
    """The least interval in seconds between acknowledgements."""
    killed_at: float | None = None
    joins_at: float | None = None
    joins_from: float | None = None
    copies: bool = False
    """Whether it begins with the documents that exist, and keeps a copy of the collection."""


ROLES = (
    Role("search-index", "fast"),
    Role("cache", "fast"),
    Role("audit-log", "fast"),
    Role("reports", "slow", slow=True),
    Role("billing", "killed, started again", ack_s=0.4, killed_at=0.4),
    Role("analytics", "joins late", joins_at=0.6, joins_from=0.25),
    Role("replica", "copies, then follows", joins_at=0.5, copies=True),
)
SLOW_SHARE = 0.35
"""The slow subscriber's speed, as a fraction of the rate of writes."""


@dataclass(slots=True)
class Actor:
    """A running role: its processes, one after the other, and the records that they write."""

    role: Role
    start: bytes = b""
    """The position at which the subscription began."""
    children: list[Child] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)
    """The stored position before each start except the first."""
    state: str = "waits"

    @property
    def child(self) -> Child | None:
        return self.children[-1] if self.children else None

    @property
    def done(self) -> bool:
        return self.child is not None and bool(self.child.told().get("done"))

    @property
    def failed(self) -> bool:
        """Whether its process failed without being killed by the demo."""
        child = self.child
        return child is not None and child.process.returncode not in (None, 0) and self.state != "killed"

    def records(self, world: World) -> list[Path]:
        """Return the record files, one for each session."""
        return [_record(world, self.role.name, run) for run in range(len(self.children))]

    def received(self, world: World) -> int:
        """The number of events recorded so far."""
        return sum(path.stat().st_size for path in self.records(world) if path.exists()) // DIGEST_BYTES

    def launch(self, world: World, rate: float) -> None:
        """Start its next process."""
        name, run = self.role.name, len(self.children)
        pace = rate * SLOW_SHARE if self.role.slow else 0.0
        record = str(_record(world, name, run))
        if self.role.copies:
            child = Child(world, name, run, "demo.replica", world.endpoint, name, record)
        else:
            arguments = (world.endpoint, name, record, str(pace), str(self.role.ack_s))
            child = Child(world, name, run, "demo.subscriber", *arguments)
        self.children.append(child)
        child.process.start()
        self.state = "starts"

    async def kill9(self) -> None:
        """Kill its process with kill -9, which leaves it no chance to shut down."""
        self.state = "killed"
        if self.child is not None:
            await self.child.process.kill9()

    def hurry(self) -> None:
        if self.child is not None:
            self.child.signal(SIGUSR1)


def _record(world: World, name: str, run: int) -> Path:
    return world.folder / f"{name}.{run}.record"
