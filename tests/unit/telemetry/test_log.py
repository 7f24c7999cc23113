"""Log lines and records: what they withhold, and how often exporters may complain."""

import ast
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from bson.errors import InvalidBSON
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pymongo.errors import OperationFailure

import feedmux_server
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.telemetry.log import FIELDS, ComplaintFilter, JsonFormatter, LineFormatter, stack_of
from feedmux_server.telemetry.otlp_logs import OtlpHandler


def keys_of_extra(tree: ast.AST) -> set[str]:
    """The names in `extra={…}`."""
    dicts = [each.value for each in ast.walk(tree) if isinstance(each, ast.keyword) and each.arg == "extra"]
    keys = [key for each in dicts if isinstance(each, ast.Dict) for key in each.keys]
    return {str(key.value) for key in keys if isinstance(key, ast.Constant)}


def test_every_fact_that_is_logged_is_written() -> None:
    files = Path(feedmux_server.__file__).parent.rglob("*.py")
    logged = set[str]().union(*(keys_of_extra(ast.parse(file.read_text())) for file in files))
    assert len(logged) > 15
    assert logged - set(FIELDS) == set(), "`telemetry.log` drops this field"


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
    assert all(complaints.filter(record("feedmux_server.streams.pump", logging.ERROR)) for _ in range(10))
    assert all(complaints.filter(record("opentelemetry.exporter", logging.DEBUG)) for _ in range(10))


@pytest.mark.parametrize(
    ("variable", "value", "quoted"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=b, Authorization: Bearer canary", "no header: Authorization: Bearer canary"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "key=Bearer%20can%0Aary-canary", r"no value: 'Bearer can\nary-canary'"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:canary@host:4317", "exporting to me:canary@host:4317"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://host/v1/traces?key=canary", "url: /v1/traces?key=canary"),
    ],
)
def test_a_complaint_quotes_no_login_and_has_no_stack(
    variable: str, value: str, quoted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    try:
        raise ValueError(quoted)
    except ValueError:
        failed = {"msg": "failed: %s", "args": (quoted,), "exc_info": sys.exc_info()}
    said = logging.makeLogRecord({**vars(record("opentelemetry.sdk")), **failed})
    assert ComplaintFilter().filter(said)
    line = JsonFormatter().format(said)
    assert "canary" not in line
    assert "test_log.py" not in line
    assert "failed: " in line
    assert "(ValueError: " in line


@pytest.mark.parametrize("formatter", [JsonFormatter(), LineFormatter()])
@pytest.mark.parametrize(
    "quoting",
    [
        OperationFailure("canary", 1, {"errmsg": "canary"}),
        InvalidBSON("canary"),
        FeedmuxError(ErrorReason.OPTION_REFUSED, "MongoDB: canary"),
        json.JSONDecodeError("canary", "canary", 0),
    ],
)
def test_a_stack_in_the_log_holds_no_text_that_quotes_data(formatter: logging.Formatter, quoting: Exception) -> None:
    try:
        try:
            raise quoting
        except Exception as error:
            raise RuntimeError("our own words") from error
    except RuntimeError:
        line = formatter.format(logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()}))
    assert "canary" not in line
    for kept in ("our own words", type(quoting).__name__, "test_log.py"):
        assert kept in line


def test_a_group_is_logged_with_the_stacks_of_its_errors() -> None:
    quoting = [InvalidBSON("canary one"), InvalidBSON("canary two")]

    def fail(name: str) -> Exception:
        try:
            try:
                raise quoting.pop()
            except InvalidBSON as error:
                raise RuntimeError(f"failure {name}") from error
        except RuntimeError as error:
            return error

    group = ExceptionGroup("two tasks failed", [fail("one"), ExceptionGroup("and", [fail("two")])])
    text = stack_of(group)
    assert "canary" not in text
    assert text.count("in fail") == 4
    assert text.count("with this in the group") == 3
    for kept in ("two tasks failed (2 sub-exceptions)", "failure one", "failure two", "InvalidBSON"):
        assert kept in text
    endless = RuntimeError("endless")
    endless.__context__ = ExceptionGroup("of itself", [endless])
    assert stack_of(endless).count("endless") <= 8


def test_a_log_line_names_its_trace() -> None:
    record = logging.makeLogRecord({"msg": "hello", "levelname": "INFO", "tenant": "a"})
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    assert "trace_id" not in json.loads(JsonFormatter().format(record))
    with tracer.start_as_current_span("work") as span:
        line = json.loads(JsonFormatter().format(record))
    here = span.get_span_context()
    assert line["trace_id"] == trace.format_trace_id(here.trace_id)
    assert line["span_id"] == trace.format_span_id(here.span_id)
    assert line["tenant"] == "a"


class Provider:
    """Keeps what is emitted."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.emit = self.records.append

    def get_logger(self, name: str) -> "Provider":
        return self


def emitted(**facts: Any) -> list[Any]:
    provider: Any = Provider()
    OtlpHandler(provider).emit(logging.makeLogRecord({"name": "feedmux_server.x", "msg": "hello", **facts}))
    return list(provider.records)


def test_facts_keep_their_types_and_an_exception_its_kind() -> None:
    try:
        raise ValueError("canary")
    except ValueError:
        (record,) = emitted(levelno=logging.ERROR, tenant="a", count=3, exc_info=sys.exc_info())
    assert (record.attributes["feedmux.tenant"], record.attributes["feedmux.count"]) == ("a", 3)
    assert record.attributes["exception.type"] == "ValueError"


def test_an_exporters_own_complaints_are_not_exported() -> None:
    assert emitted(name="opentelemetry.exporter.otlp", levelno=logging.ERROR) == []
