"""Structured logs: one JSON object per line, or short lines on a terminal. Never documents, tokens or passwords.

Modules log facts through `extra=`; only the fields named in `FIELDS` are written, so that none slips in by accident.
"""

import json
import logging
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from urllib.parse import unquote

from opentelemetry import trace

from feedmux_server.clock import monotonic_s
from feedmux_server.core.errors import FeedmuxError

FIELDS = (
    "address", "code", "correlation_id", "epoch", "error", "format", "method", "peer", "reason", "runs", "scope",
    "source", "stream", "subscriber", "subscription", "task", "tenant", "dependency", "backlog_bytes", "count",
    "events", "request_bytes", "seconds", "unsent_bytes",
)  # fmt: skip


EXPORTERS = ("opentelemetry", "urllib3")
"""Loggers of the telemetry exporters. While a collector is unavailable, they log a complaint at every attempt."""
_COMPLAINTS_EVERY_S = 60.0
_QUOTING = ("pymongo", "bson", "redis", "google", "json")
"""Packages whose exceptions quote their input."""
_WITHHELD = "(its text is withheld: it may quote data)"
_ERRORS_MAX = 8
_SECRET_MIN = 8
"""Shorter words of a header, such as `Bearer`, are part of other words too."""


def correlation_id() -> str:
    """A new id for an INTERNAL error and for the log line that explains it."""
    return secrets.token_hex(8)


class JsonFormatter(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(facts_of(record))
        line.update(_trace_ids())
        if record.exc_info:
            line["exception"] = stack_of(record.exc_info[1])
        return json.dumps(line, default=str)


class LineFormatter(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{name}={value}" for name, value in facts_of(record).items())
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        text = f"{time} {record.levelname.lower():7} {record.getMessage()}{'  ' + facts if facts else ''}"
        return f"{text}\n{stack_of(record.exc_info[1])}" if record.exc_info else text


def configure(level: str, style: str) -> None:
    """`style` is `json`, `text`, or `auto`: text on a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler.setFormatter(LineFormatter() if text else JsonFormatter())
    handler.addFilter(ComplaintFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("pymongo").setLevel(logging.WARNING)
    # pymongo's background task logs a traceback whenever a server is unavailable; streams log that themselves, once.
    logging.getLogger("pymongo.client").setLevel(logging.CRITICAL)


class ComplaintFilter(logging.Filter):
    """Passes one line a minute from each exporter's logger; the next line has the count of the lines since. A line
    of an exporter has no stack, and none of the secrets that its variables hold."""

    def __init__(self, clock: Callable[[], float] = monotonic_s) -> None:
        super().__init__()
        self._clock = clock
        self._next_s: dict[str, float] = {}
        self._kept_back: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        name = record.name
        if not name.startswith(EXPORTERS):
            return True
        if record.levelno >= logging.WARNING:
            now_s = self._clock()
            if now_s < self._next_s.get(name, 0.0):
                self._kept_back[name] = self._kept_back.get(name, 0) + 1
                return False
            self._next_s[name] = now_s + _COMPLAINTS_EVERY_S
            kept_back = self._kept_back.pop(name, 0)
            if kept_back:
                record.count = kept_back + 1
        _shorten(record)
        return True


def without_secrets(text: str) -> str:
    """Replace what the variables of OpenTelemetry hold to log in at a collector: SDK and exporters quote it when they
    cannot use it."""
    for secret in sorted(set(_secrets()), key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def _secrets() -> Iterator[str]:
    for name, value in os.environ.items():
        if not name.startswith("OTEL_EXPORTER_"):
            continue
        if name.endswith("_HEADERS"):
            pieces = [each.strip() for each in value.split(",")]
            yield from (each for each in pieces if each)
            # A value may be quoted with its control characters escaped, or without the word before it.
            words = (word for each in pieces for word in f"{each} {unquote(each)}".replace("=", " ").split())
            yield from (word for word in words if len(word) >= _SECRET_MIN)
        elif name.endswith("_ENDPOINT"):
            before, at, _ = value.rpartition("@")
            userinfo, query = before.rpartition("//")[2] if at else "", value.partition("?")[2]
            yield from (each for each in (userinfo, query) if each)


def _shorten(record: logging.LogRecord) -> None:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        text += f" ({type(error).__name__}: {error})"
    record.msg, record.args, record.exc_info = without_secrets(text), None, None


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    """The facts that a record has in addition to its text."""
    return {name: record.__dict__[name] for name in FIELDS if record.__dict__.get(name) is not None}


def stack_of(error: BaseException | None) -> str:
    """Format an exception with its causes, the exceptions of its group, and their stacks, without texts that quote
    pipelines, keys or documents."""
    text = ""
    for joint, each in islice(_errors(error), _ERRORS_MAX):
        kind = type(each)
        quotes = kind.__module__.partition(".")[0] in _QUOTING or isinstance(each, FeedmuxError)
        stack = "".join(traceback.format_tb(each.__traceback__))
        text += f"{joint if text else ''}{stack}{kind.__module__}.{kind.__qualname__}: {_WITHHELD if quotes else each}"
    return text


def _errors(error: BaseException | None, joint: str = "") -> Iterator[tuple[str, BaseException]]:
    """Each exception with the text that introduces it."""
    while error is not None:
        yield joint, error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _errors(each, "\n\nwith this in the group:\n\n")
        joint = "\n\nwhile this was the cause or was being handled:\n\n"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _trace_ids() -> dict[str, str]:
    """The ids of the span in which a line is written, with the names of OpenTelemetry's log data model."""
    here = trace.get_current_span().get_span_context()
    if not here.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(here.trace_id), "span_id": trace.format_span_id(here.span_id)}
