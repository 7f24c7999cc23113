"""The settings of a benchmark. The default of every size is the one in the README's table."""

from dataclasses import dataclass

DATABASE, COLLECTION = "bench", "orders"
NAMESPACE = f"{DATABASE}.{COLLECTION}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings from the command line; None and False mean the benchmark's default sizes."""

    events: int | None = None
    """Events of the backlog, or of the range that contains the positions."""
    runs: int = 3
    """How often both sides are measured, in turn."""
    quick: bool = False
    """Use smaller sizes: runs take seconds instead of minutes, and the figures are rougher."""
    tiny: bool = False
    """Use sizes for the tests, at which the figures mean nothing."""
    vector: str | None = None
    """`abuse`: the only vector to measure."""

    def size(self, full: int, quick: int, tiny: int) -> int:
        """Return the one of three sizes that these settings choose."""
        return tiny if self.tiny else quick if self.quick else full

    def backlog(self, full: int, quick: int, tiny: int) -> int:
        """Return the number of events, which `events` overrides."""
        return self.events or self.size(full, quick, tiny)
