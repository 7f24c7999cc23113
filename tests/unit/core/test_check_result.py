"""What a check says: when a clock is off, and which findings prevent a start."""

from feedmux_server.core.check_result import CheckResult, Level, check_clock, failures
from tests.tables import over


@over(
    ("skew_s", "unsure_s", "says"),
    [
        (2.0, 0.0, "within 2 s of"),
        (-2.0, 0.0, "within 2 s of"),
        (2.1, 0.0, "2.1 s ahead of"),
        (-2.1, 0.0, "2.1 s behind"),
        (2.9, 1.0, "within 2 s of"),
        (3.1, 1.0, "3.1 s ahead of"),
    ],
)
def test_a_clock_may_be_off_by_two_seconds_and_by_what_is_unknown(skew_s: float, unsure_s: float, says: str) -> None:
    found = check_clock("redis.clock", "Redis", skew_s, unsure_s, "Run NTP")
    assert f"the clock of Redis is {says} this machine's" in found.says
    is_off = "within" not in says
    assert (found.level, found.advice) == ((Level.WARNING, "Run NTP") if is_off else (Level.OK, ""))


def test_only_what_failed_prevents_a_start() -> None:
    found = [CheckResult(level.value, level, "fact", "advice") for level in Level]
    assert [each.check for each in failures(found)] == ["failed"]


def test_a_finding_is_shown_with_its_advice_if_it_has_one() -> None:
    assert str(CheckResult("c", Level.FAILED, "it is full", "Empty it")) == "it is full. Empty it"
    assert str(CheckResult("c", Level.OK, "it is empty")) == "it is empty"
