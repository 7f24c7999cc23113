"""The files of the alerts and the dashboard: complete, readable, and linked to the runbook."""

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.started import ran
from tests.telemetry.days import BAD_DAYS, GOOD_DAY, check, day
from tests.telemetry.promql import RULES, RUNBOOK, asked, dashboard, queries, rules

WANTED = {
    "FeedmuxHistoryAtRisk", "FeedmuxStoredHistoryAtRisk", "FeedmuxLagGrowing", "FeedmuxNotReady",
    "FeedmuxRedisUnavailable", "FeedmuxRedisErrors", "FeedmuxCommitsFailing", "FeedmuxEventLoopLate",
    "FeedmuxQuotaExhausted", "FeedmuxResumeStorm", "FeedmuxMemoryNearLimit", "FeedmuxNoProgress",
}  # fmt: skip


def test_every_alert_says_what_is_wrong_how_bad_it_is_and_where_to_read_on() -> None:
    headings = re.findall(r"^## (\w+)$", RUNBOOK.read_text("utf-8"), re.MULTILINE)
    assert {rule["alert"] for rule in rules()} >= WANTED
    for rule in rules():
        name = rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert rule["annotations"]["summary"], name
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert name in headings, f"docs/runbook.md has no section {name}"
    # The runbook has no section without an alert.
    assert {each for each in headings if each.startswith("Feedmux")} == {rule["alert"] for rule in rules()}


def test_a_section_of_the_runbook_says_what_it_means_what_to_check_and_what_to_do() -> None:
    sections = re.split(r"^## (Feedmux\w+)$", RUNBOOK.read_text("utf-8"), flags=re.MULTILINE)
    for name, text in zip(sections[1::2], sections[2::2], strict=True):
        for part in ("**Means.**", "**Check.**", "**Do.**"):
            assert part in text, f"{name} lacks {part}"


def test_what_a_summary_shows_is_a_label_of_its_expression() -> None:
    for rule in rules():
        shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        needs = asked(rule["expr"])
        aggregated = re.search(r"\b(sum|max|min)\b\s*(by|without)?", rule["expr"])
        by = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        if aggregated and by:
            kept = {label.strip() for group in by for label in group.split(",")}
            assert shown <= kept, rule["alert"]
        elif "without" not in rule["expr"] and aggregated:
            assert not shown, rule["alert"]
        assert needs.series


def test_panels_are_described_and_lie_beside_each_other() -> None:
    panels = dashboard()["panels"]
    assert max(Counter(panel["id"] for panel in panels).values()) == 1
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["targets"], panel["title"]


def test_promtool_takes_rules_and_queries(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (Debian's package prometheus has it)")
    recorded = [{"record": f"query:{n}", "expr": each.expression} for n, each in enumerate(queries())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    for path in (RULES, file):
        checked = ran(promtool, "check", "rules", path, timeout_s=60)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_alert_has_its_bad_day() -> None:
    assert set(BAD_DAYS) == {rule["alert"] for rule in rules()}


def test_alerts_fire_on_their_day_and_on_no_other(tmp_path: Path) -> None:
    days = [day("a good day", GOOD_DAY, [])]
    for alert, series in BAD_DAYS.items():
        days.append(day(alert, {**GOOD_DAY, **series}, [f'{{alertname="{alert}"}}']))
    check([RULES], days, tmp_path)
