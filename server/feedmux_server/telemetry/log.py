"""Structured logs: one JSON object per line, or short lines on a terminal. Never documents, tokens or passwords.

Modules log facts through `extra=`; only the fields named in `_FIELDS` are written, so that none slips in by accident.
"""

import json
import logging
import secrets
import sys
from datetime import UTC, datetime

_FIELDS = (
    "address", "code", "correlation_id", "epoch", "error", "method", "peer", "reason", "scope", "source", "stream",
    "subscriber", "subscription", "tenant", "dependency", "away", "count", "seconds",
)  # fmt: skip


def correlation_id() -> str:
    """Stands in an INTERNAL error and in the log line that explains it."""
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
        line.update(_fields(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class LineFormatter(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        time = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        text = f"{time} {record.levelname.lower():7} {record.getMessage()}{'  ' + facts if facts else ''}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(level: str, style: str) -> None:
    """`style` is `json`, `text`, or `auto`: text on a terminal."""
    handler = logging.StreamHandler(sys.stderr)
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    handler.setFormatter(LineFormatter() if text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("pymongo").setLevel(logging.WARNING)
    # Its background task logs a traceback whenever a server is away; streams log that themselves, once.
    logging.getLogger("pymongo.client").setLevel(logging.CRITICAL)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: record.__dict__[name] for name in _FIELDS if record.__dict__.get(name) is not None}
