"""What a check of a part of the deployment has found, and what to do about it. Made by `source` and `store`; the server
does not start on FAILED and logs WARNING, `feedmux doctor` shows all findings."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SKEW_MOST_S: Final = 2.0


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, but the operator should know."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It could not be checked; `advice` says how to check it."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`says` is the fact, `advice` what to do next; only OK has none. Neither holds a password or a document."""

    check: str
    level: Level
    says: str
    advice: str = ""

    @classmethod
    def ok(cls, check: str, says: str) -> "CheckResult":
        return cls(check, Level.OK, says)

    @classmethod
    def warning(cls, check: str, says: str, advice: str) -> "CheckResult":
        return cls(check, Level.WARNING, says, advice)

    @classmethod
    def failed(cls, check: str, says: str, advice: str) -> "CheckResult":
        return cls(check, Level.FAILED, says, advice)

    def __str__(self) -> str:
        return f"{self.says}. {self.advice}" if self.advice else self.says


def failures(findings: Iterable[CheckResult]) -> list[CheckResult]:
    return [finding for finding in findings if finding.level is Level.FAILED]


def check_clock(check: str, whose: str, skew_s: float, unsure_s: float, advice: str) -> CheckResult:
    """`skew_s`: how far that clock is ahead of this machine's, give or take `unsure_s`."""
    if abs(skew_s) > SKEW_MOST_S + unsure_s:
        direction = "ahead of" if skew_s > 0 else "behind"
        says = f"the clock of {whose} is {abs(skew_s):.1f} s {direction} this machine's"
        return CheckResult(check, Level.WARNING, says, advice)
    return CheckResult(check, Level.OK, f"the clock of {whose} is within {SKEW_MOST_S:g} s of this machine's")
