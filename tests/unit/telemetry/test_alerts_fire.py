"""Each alert on an invented day: it fires when its condition occurs, and no alert fires on a good day. Uses
promtool."""

from pathlib import Path

from tests.telemetry.days import BAD_DAYS, GOOD_DAY, check, day
from tests.telemetry.promql import RULES, rules


def test_every_alert_has_its_bad_day() -> None:
    assert set(BAD_DAYS) == {rule["alert"] for rule in rules()}


def test_alerts_fire_on_their_day_and_on_no_other(tmp_path: Path) -> None:
    days = [day("a good day", GOOD_DAY, [])]
    for alert, series in BAD_DAYS.items():
        days.append(day(alert, {**GOOD_DAY, **series}, [f'{{alertname="{alert}"}}']))
    check([RULES], days, tmp_path)
