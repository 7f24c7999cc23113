"""docs/runbook.md names panels that the dashboard has, and log messages that the server writes."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.checks.test_docs import CODE, REPOSITORY, listed, prose
from tests.telemetry.promql import RUNBOOK, dashboard

BOLD: Final = re.compile(r"\*\*[^*]+\*\*")
PANEL: Final = re.compile(r"\*([^*]+)\*")
LOG_MESSAGE: Final = re.compile(r"\blog\s+message\s+`([^`]+)`")
LOG_METHODS: Final = ("debug", "info", "warning", "error", "exception", "critical", "_failed")
"""Methods that log their arguments; `_failed` is that of the supervisor."""


def panels(text: str) -> list[str]:
    """The panels that a page names: what it writes in italics."""
    return [" ".join(name.split()) for name in PANEL.findall(BOLD.sub("", CODE.sub("", text)))]


def log_messages(text: str) -> list[str]:
    """The log messages that a page quotes."""
    return [" ".join(message.split()) for message in LOG_MESSAGE.findall(text)]


def logged(source: str) -> Iterator[str]:
    """The texts that a module logs."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LOG_METHODS:
            for node in (each for argument in call.args for each in ast.walk(argument)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_panels_are_on_the_dashboard() -> None:
    named = panels(prose(RUNBOOK))
    assert named
    assert set(named) <= {panel["title"] for panel in dashboard()["panels"] if panel["type"] != "row"}


def test_log_messages_are_those_of_the_server() -> None:
    sources = [(REPOSITORY / name).read_text() for name in listed("server/feedmux_server/*.py")]
    texts = {text for source in sources for text in logged(source)}
    quoted = log_messages(prose(RUNBOOK))
    assert quoted
    assert [message for message in quoted if not any(text.startswith(message) for text in texts)] == []
