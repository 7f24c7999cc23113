"""One query for each consumerName: told apart within an application, and renewed for other applications."""

import logging
import os
import subprocess
import sys

import pytest

from feedmux.errors import SubscriptionBusy
from feedmux_spark import lease
from feedmux_spark.connection import Connection
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.lease import Renewal, hold_name, instance_id
from feedmux_spark.options import Options, parse_options
from feedmux_spark.planning import Planner, Wanted
from tests.unit.spark.answers import FEED, Answers, plan

_OTHER_QUERY = """
import os
from feedmux_spark.lease import hold_name
from feedmux_spark.options import parse_options
hold_name(parse_options({"endpoint": "x:1", "consumerName": "q"}), application=os.getppid())
print("held", flush=True)
input()
"""


def options(**more: str) -> Options:
    return parse_options({"endpoint": "x:1", "consumerName": "q", **more})


def test_queries_of_one_application_are_told_apart() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _OTHER_QUERY]
    with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(FeedmuxSparkError, match=r"Another query of this Spark application reads under.*'q'"):
                hold_name(options(), application=os.getpid(), wait_s=0)
            for different in ({"consumerName": "p"}, {"token": "t"}, {"endpoint": "y:1"}):
                hold_name(options(**different), application=os.getpid(), wait_s=0)
            hold_name(options(), application=-os.getpid(), wait_s=0)
        finally:
            other.kill()
    # However the process has ended: the query can be started again at once.
    hold_name(options(), application=os.getpid(), wait_s=0)


@pytest.mark.parametrize("call", ["os.open", "fcntl.lockf"])
def test_a_folder_without_locks_is_told_and_stops_no_query(
    call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(lease, "_files", {})
    monkeypatch.setattr(f"feedmux_spark.lease.{call}", refuse)
    with caplog.at_level(logging.WARNING, logger="feedmux_spark"):
        hold_name(options(), application=os.getpid(), wait_s=0)
    assert "cannot tell queries of this application" in caplog.text


def test_the_server_tells_queries_apart_that_the_lock_does_not() -> None:
    assert instance_id(options()) == instance_id(options())
    assert len({instance_id(options(**more)) for more in ({}, {"token": "t"}, {"endpoint": "y:1"})}) == 3
    assert "secret" not in instance_id(options(token="secret"))
    assert len(instance_id(options())) <= 120


def test_a_lease_is_renewed_between_plans(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    busy = SubscriptionBusy("busy", status="FAILED_PRECONDITION", reason="SUBSCRIPTION_BUSY")
    server = Answers(monkeypatch, PlanRange=[plan(b"end", 1), plan(b"after"), busy, busy, plan(b"after")])
    made = options()
    planner = Planner(made, Connection(made), "q", instance_id(made))
    renewal = Renewal(planner)
    renewal.renew(0.0)
    assert not server.asked  # nothing to renew yet
    planner.plan(Wanted(b"after", FEED))
    renewal.renew(planner.requested_s)
    assert len(server.asked) == 1
    with caplog.at_level(logging.WARNING, "feedmux_spark"):
        for _ in range(4):
            renewal.renew(planner.requested_s + lease.RENEW_S)
    (_, first), (_, renewed), *_ = server.asked
    assert renewed.instance_id == first.instance_id
    # Nothing is read for it, and a change of the feed does not release the lease.
    assert (renewed.after, renewed.until, renewed.feed_fingerprint) == (b"after", b"after", b"")
    assert caplog.text.count("another application has taken the consumerName") == 1
