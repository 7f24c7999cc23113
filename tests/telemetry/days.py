"""An invented day of a server, and for each alert a day on which its condition occurs, as series for promtool."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

REPLICA: Final = 'instance="a:9117",job="feedmux"'
SOURCE: Final = 'feedmux_source="main"'
TENANT: Final = 'feedmux_tenant="t"'
LAG_BUCKETS: Final = 'feedmux_event_loop_lag_seconds_bucket{{{replica},le="{le}"}}'

GOOD_DAY: Final = {
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
    f'feedmux_snapshot_active{{{REPLICA},{SOURCE},{TENANT},feedmux_state="running"}}': "1x180",
    f'feedmux_snapshot_active{{{REPLICA},{SOURCE},{TENANT},feedmux_state="waiting"}}': "1x180",
    f'feedmux_snapshot_active{{{REPLICA},{SOURCE},{TENANT},feedmux_state="stalled"}}': "0x112 1x6 0x60",
    f"feedmux_snapshot_remaining_seconds{{{REPLICA},{SOURCE},{TENANT}}}": "9000-60x60 5400+20x40 6200-60x77",
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
    f"feedmux_group_dead_letters_total{{{REPLICA},{TENANT}}}": "7x96 _x14 7x68",  # without Prometheus
    f"feedmux_group_dead_letters_waiting{{{REPLICA},{TENANT}}}": "0 3 0x178",
    f"feedmux_group_unattended{{{REPLICA},{TENANT}}}": "0x105 1x12 0x62",
    f"feedmux_group_oldest_unsettled_seconds{{{REPLICA},{TENANT}}}": "0x100 0+60x14 0x65",
    f"feedmux_dead_letters_utilization{{{REPLICA},{TENANT}}}": "0.5x180",
}
"""One value for each minute."""

BAD_DAYS: Final[dict[str, dict[str, str]]] = {
    "FeedmuxDeadLetters": {f"feedmux_group_dead_letters_total{{{REPLICA},{TENANT}}}": "_x115 1x64"},  # the first one
    "FeedmuxDeadLettersWaiting": {f"feedmux_group_dead_letters_waiting{{{REPLICA},{TENANT}}}": "1x180"},
    "FeedmuxDeadLettersNearLimit": {f"feedmux_dead_letters_utilization{{{REPLICA},{TENANT}}}": "0.9x180"},
    "FeedmuxGroupUnattended": {f"feedmux_group_unattended{{{REPLICA},{TENANT}}}": "1x180"},
    "FeedmuxGroupStuck": {f"feedmux_group_oldest_unsettled_seconds{{{REPLICA},{TENANT}}}": "0+60x180"},
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
    "FeedmuxSnapshotStalls": {
        f'feedmux_snapshot_active{{{REPLICA},{SOURCE},{TENANT},feedmux_state="stalled"}}': "1x180"
    },
    "FeedmuxSnapshotWillNotEnd": {
        f"feedmux_snapshot_remaining_seconds{{{REPLICA},{SOURCE},{TENANT}}}": "9000-60x20 7800+5x157"
    },
    "FeedmuxSnapshotRestarts": {
        f'feedmux_snapshot_restarts_total{{{REPLICA},{SOURCE},{TENANT},error_type="HISTORY_LOST"}}': "1+1x180"
    },
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
        f'rpc_server_call_duration_seconds_count{{{REPLICA},rpc_method="m",error_type="INTERNAL"}}': "_x115 1x64"
    },
    "FeedmuxTaskFailing": {f'feedmux_task_failures_total{{{REPLICA},feedmux_task="history"}}': "0+1x180"},
    "FeedmuxQuotaExhausted": {f'feedmux_quota_utilization{{{REPLICA},{TENANT},feedmux_quota="sessions"}}': "1x180"},
    "FeedmuxTenantThrottled": {f"feedmux_quota_throttled_seconds_total{{{REPLICA},{TENANT}}}": "0+60x180"},
}


def day(name: str, series: dict[str, str], firing: list[str]) -> dict[str, Any]:
    """A test of promtool: after two hours of the series, alerts with these labels fire, and no others do."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname, namespace, service) (ALERTS{alertstate="firing"})',
                "eval_time": "2h",
                "exp_samples": [{"labels": labels, "value": 1} for labels in firing],
            }
        ],
    }


def check(rule_files: Sequence[Path], days: Sequence[dict[str, Any]], folder: Path) -> None:
    """Run the tests of days by promtool."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool (Debian's package prometheus has it)")
    # Seldom, because only what fires at the end counts, and all rules of all days are evaluated each time.
    content = {"rule_files": [str(each) for each in rule_files], "evaluation_interval": "3m", "tests": list(days)}
    file = folder / "days.yaml"
    file.write_text(yaml.safe_dump(content))
    command = [promtool, "test", "rules", str(file)]
    tested = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
