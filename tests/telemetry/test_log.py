"""What exporters say while a collector is away reaches the log at a sane rate."""

import logging

from feedmux_server.telemetry.log import ComplaintFilter


def record(logger: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.makeLogRecord({"name": logger, "levelno": level, "msg": "cannot be sent"})


def test_one_complaint_a_minute_of_each_exporter_and_how_many_there_were() -> None:
    now_s = 1000.0
    complaints = ComplaintFilter(lambda: now_s)
    passed = [complaints.filter(record("opentelemetry.exporter.a")) for _ in range(5)]
    assert passed == [True, False, False, False, False]
    assert complaints.filter(record("opentelemetry.exporter.b"))
    now_s += 61
    again = record("opentelemetry.exporter.a", logging.ERROR)
    assert complaints.filter(again)
    assert vars(again)["count"] == 5
    now_s += 61
    last = record("opentelemetry.exporter.a")
    assert complaints.filter(last)
    assert "count" not in vars(last)


def test_what_the_server_says_itself_is_never_kept_back() -> None:
    complaints = ComplaintFilter(lambda: 0.0)
    assert all(complaints.filter(record("feedmux_server.fanout.pump", logging.ERROR)) for _ in range(10))
    assert all(complaints.filter(record("opentelemetry.exporter", logging.DEBUG)) for _ in range(10))
