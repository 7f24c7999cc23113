"""Sends log records to OpenTelemetry: the same fields as in the log lines, with the trace they were written in."""

import logging
from time import time_ns

from opentelemetry import context as contexts
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider

from feedmux_server.telemetry.log import EXPORTERS, facts_of, stack_of

_SEVERITIES = (
    (logging.CRITICAL, SeverityNumber.FATAL, "FATAL"),
    (logging.ERROR, SeverityNumber.ERROR, "ERROR"),
    (logging.WARNING, SeverityNumber.WARN, "WARN"),
    (logging.INFO, SeverityNumber.INFO, "INFO"),
)


class OtlpHandler(logging.Handler):
    """Puts records into the provider's bounded queue without waiting. The exporters' own records are omitted: otherwise
    an unavailable collector would be sent complaints about itself."""

    def __init__(self, provider: LoggerProvider) -> None:
        super().__init__()
        self._provider = provider

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(EXPORTERS):
            return
        number, text = next(
            ((number, text) for level, number, text in _SEVERITIES if record.levelno >= level),
            (SeverityNumber.DEBUG, "DEBUG"),
        )
        attributes: dict[str, str | int | float | bool] = {
            f"feedmux.{name}": value if isinstance(value, str | int | float) else str(value)
            for name, value in facts_of(record).items()
        }
        if record.exc_info and record.exc_info[0] is not None:
            attributes["exception.type"] = record.exc_info[0].__name__
            attributes["exception.stacktrace"] = stack_of(record.exc_info[1])
        self._provider.get_logger(record.name).emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                observed_timestamp=time_ns(),
                context=contexts.get_current(),
                severity_number=number,
                severity_text=text,
                body=record.getMessage(),
                attributes=attributes,
            )
        )
