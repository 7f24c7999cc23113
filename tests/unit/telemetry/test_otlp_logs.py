"""Log records as OpenTelemetry gets them."""

import logging
import sys
from typing import Any

from feedmux_server.telemetry.otlp_logs import OtlpHandler


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
