"""Each alert on an invented day: it fires when its condition occurs, and no alert fires on a good day. Uses
promtool."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.telemetry.promql import RULES, rules

REPLICA = 'instance="a:9117",job="feedmux"'
SOURCE, TENANT = 'feedmux_source="main"', 'feedmux_tenant="t"'
LAG_BUCKETS = 'feedmux_event_loop_lag_seconds_bucket{{{replica},le="{le}"}}'

GOOD_DAY = {
    f"feedmux_ready{{{REPLICA}}}": "1x180",
    f"feedmux_redis_available{{{REPLICA}}}": "1x180",
    f"feedmux_source_available{{{REPLICA},{SOURCE}}}": "1x180",
    f"feedmux_history_at_risk{{{REPLICA},{SOURCE},{TENANT}}}": "0x180",
    f"feedmux_history_stored_at_risk{{{REPLICA},{SOURCE},{TENANT}}}": "0x180",
    f"feedmux_subscription_damaged{{{REPLICA},{TENANT}}}": "0x180",
    f"feedmux_subscriber_lag_seconds{{{REPLICA},{TENANT}}}": "0 1 2 1 0x176",
    f"feedmux_stream_lag_seconds{{{REPLICA},{SOURCE}}}": "1x180",
    f'feedmux_stream_active{{{REPLICA},{SOURCE},feedmux_state="reading"}}': "5x180",
    f"feedmux_stream_reads_total{{{REPLICA},{SOURCE}}}": "0+300x180",
    f'feedmux_stream_resumes_total{{{REPLICA},{SOURCE},error_type="NetworkTimeout"}}': "0 1 1 2 2x176",
    f"feedmux_stream_catch_up{{{REPLICA},{SOURCE}}}": "2x180",
    f"feedmux_stream_catch_up_limit{{{REPLICA}}}": "32x180",
    f'feedmux_commit_results_total{{{REPLICA},feedmux_outcome="ok"}}': "0+100x180",
    f'feedmux_commit_results_total{{{REPLICA},feedmux_outcome="failed"}}': "0x180",
    f'feedmux_redis_errors_total{{{REPLICA},error_type="TIMEOUT"}}': "0 0 1 1x177",
    LAG_BUCKETS.format(replica=REPLICA, le="0.005"): "0+600x180",
    LAG_BUCKETS.format(replica=REPLICA, le="0.5"): "0+600x180",
    LAG_BUCKETS.format(replica=REPLICA, le="+Inf"): "0+600x180",
    f'feedmux_memory_usage_bytes{{{REPLICA},feedmux_part="rings"}}': "500x180",
    f'feedmux_memory_limit_bytes{{{REPLICA},feedmux_part="rings"}}': "1000x180",
    f'feedmux_subscriber_active{{{REPLICA},{TENANT},feedmux_state="live"}}': "100x180",
    f"feedmux_session_limit{{{REPLICA}}}": "10000x180",
    f"feedmux_session_opened_total{{{REPLICA},{TENANT}}}": "100+1x180",
    f'rpc_server_call_duration_seconds_count{{{REPLICA},rpc_method="m",error_type="QUOTA_EXCEEDED"}}': "0+1x180",
    f'feedmux_quota_utilization{{{REPLICA},{TENANT},feedmux_quota="sessions"}}': "0.5x180",
    f"feedmux_quota_throttled_seconds_total{{{REPLICA},{TENANT}}}": "0+1x180",
    f'feedmux_task_failures_total{{{REPLICA},feedmux_task="history"}}': "1x180",
}
"""One value for each minute."""

BAD_DAYS: dict[str, dict[str, str]] = {
    "FeedmuxHistoryAtRisk": {f"feedmux_history_at_risk{{{REPLICA},{SOURCE},{TENANT}}}": "1x180"},
    "FeedmuxStoredHistoryAtRisk": {f"feedmux_history_stored_at_risk{{{REPLICA},{SOURCE},{TENANT}}}": "2x180"},
    "FeedmuxSubscriptionDamaged": {f"feedmux_subscription_damaged{{{REPLICA},{TENANT}}}": "1x180"},
    "FeedmuxLagGrowing": {f"feedmux_subscriber_lag_seconds{{{REPLICA},{TENANT}}}": "0+20x180"},
    "FeedmuxSourceUnavailable": {f"feedmux_source_available{{{REPLICA},{SOURCE}}}": "0x180"},
    "FeedmuxNoProgress": {f"feedmux_stream_reads_total{{{REPLICA},{SOURCE}}}": "900x180"},
    "FeedmuxStreamLag": {f"feedmux_stream_lag_seconds{{{REPLICA},{SOURCE}}}": "90x180"},
    "FeedmuxResumeStorm": {
        f'feedmux_stream_resumes_total{{{REPLICA},{SOURCE},error_type="NetworkTimeout"}}': "0+30x180"
    },
    "FeedmuxCatchUpStreamsExhausted": {f"feedmux_stream_catch_up{{{REPLICA},{SOURCE}}}": "32x180"},
    "FeedmuxRedisUnavailable": {f"feedmux_redis_available{{{REPLICA}}}": "0x180"},
    "FeedmuxCommitsFailing": {f'feedmux_commit_results_total{{{REPLICA},feedmux_outcome="failed"}}': "0+3x180"},
    "FeedmuxRedisErrors": {f'feedmux_redis_errors_total{{{REPLICA},error_type="TIMEOUT"}}': "0+6x180"},
    "FeedmuxNotReady": {f"feedmux_ready{{{REPLICA}}}": "0x180", 'feedmux_ready{instance="b:9117"}': "1x180"},
    "FeedmuxDown": {f"feedmux_ready{{{REPLICA}}}": "_x180"},
    "FeedmuxEventLoopLate": {LAG_BUCKETS.format(replica=REPLICA, le="0.005"): "0+300x180"},
    "FeedmuxMemoryNearLimit": {f'feedmux_memory_usage_bytes{{{REPLICA},feedmux_part="rings"}}': "950x180"},
    "FeedmuxSessionsNearLimit": {f'feedmux_subscriber_active{{{REPLICA},{TENANT},feedmux_state="live"}}': "9500x180"},
    "FeedmuxSessionStorm": {f"feedmux_session_opened_total{{{REPLICA},{TENANT}}}": "0+900x180"},
    "FeedmuxInternalErrors": {
        f'rpc_server_call_duration_seconds_count{{{REPLICA},rpc_method="m",error_type="INTERNAL"}}': "0+1x180"
    },
    "FeedmuxTaskFailing": {f'feedmux_task_failures_total{{{REPLICA},feedmux_task="history"}}': "0+1x180"},
    "FeedmuxQuotaExhausted": {f'feedmux_quota_utilization{{{REPLICA},{TENANT},feedmux_quota="sessions"}}': "1x180"},
    "FeedmuxTenantThrottled": {f"feedmux_quota_throttled_seconds_total{{{REPLICA},{TENANT}}}": "0+60x180"},
}


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool (Debian's package prometheus has it)")
    return found


def test_every_alert_has_its_bad_day() -> None:
    assert set(BAD_DAYS) == {rule["alert"] for rule in rules()}


def test_alerts_fire_on_their_day_and_on_no_other(promtool: str, tmp_path: Path) -> None:
    days: dict[str, tuple[dict[str, str], list[str]]] = {"a good day": (GOOD_DAY, [])}
    for alert, series in BAD_DAYS.items():
        days[alert] = ({**GOOD_DAY, **series}, [alert])
    content = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [_day(name, series, firing) for name, (series, firing) in days.items()],
    }
    file = tmp_path / "days.yaml"
    file.write_text(yaml.safe_dump(content))
    tested = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def _day(name: str, series: dict[str, str], firing: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "2h",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in firing],
            }
        ],
    }
