"""Logs, metrics, traces, audit."""

import logging

# The SDK complains of a resource detector that it does not find when it is imported, with a stack, before the log is
# configured; and once more when it starts.
logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
