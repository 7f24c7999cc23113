"""What a benchmark is asked to do. Every size has the figure of the README's table as its default."""

from dataclasses import dataclass

DATABASE, COLLECTION = "bench", "orders"
NAMESPACE = f"{DATABASE}.{COLLECTION}"


@dataclass(frozen=True, slots=True)
class Settings:
    """From the command line; None and False leave a benchmark's own sizes."""

    events: int | None = None
    """Events of the backlog, or of the stretch that the positions lie in."""
    runs: int = 3
    """Times that both sides are measured, in turn."""
    quick: bool = False
    """Smaller sizes: minutes become seconds, and the figures rougher."""
    tiny: bool = False
    """Sizes at which the figures mean nothing, for the tests."""
    vector: str | None = None
    """`abuse`: the only one to measure."""

    def size(self, full: int, quick: int, tiny: int) -> int:
        """The one of three sizes that these settings ask for."""
        return tiny if self.tiny else quick if self.quick else full

    def backlog(self, full: int, quick: int, tiny: int) -> int:
        """The same for a number of events, which `events` overrides."""
        return self.events or self.size(full, quick, tiny)
