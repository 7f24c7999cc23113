"""Decides whether a dependency counts as available: several failures in a row make it unavailable, and several
successes available again, so that one slow answer does not remove a replica from its service and add it again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadinessRules:
    failures: int = 3
    successes: int = 2

    def __post_init__(self) -> None:
        if self.failures < 1 or self.successes < 1:
            raise ValueError("failures and successes must be at least 1")


class Presence:
    """Whether one dependency is available. Begins as it was found at the start."""

    def __init__(self, rules: ReadinessRules, *, there: bool) -> None:
        self._rules = rules
        self._against = 0
        self.there = there

    def observe(self, there: bool) -> bool:
        """Takes what a check found; whether `there` has changed by it."""
        if there == self.there:
            self._against = 0
            return False
        self._against += 1
        if self._against < (self._rules.successes if there else self._rules.failures):
            return False
        self.there, self._against = there, 0
        return True
